package driver

import (
	"cmp"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-lock/holdfast/internal/printable"
)

// A Location is the URL of a store, taken apart. The parts of a server's URL are as they were
// written, with their escapes.
type Location struct {
	Kind   *Kind
	Scheme string

	Path   string // of a file or directory
	Create bool   // it is the program's own, and is made if it is missing

	ReadOnly bool // opened only to read: needs no other right, and creates nothing but the program's own file

	User, Password       string
	HasUser, HasPassword bool
	Host                 string // or several, with commas
	Database             string // with its slash
	Query                string // without our settings

	Allow          []string // dangers that are accepted, by name
	Schema, Prefix string   // of the tables
	Socket         string   // in place of a host

	shown   []string // settings that may be shown
	secrets []string // values that may not
}

// At is the location of a file or directory.
func (k *Kind) At(path string) *Location {
	return &Location{Kind: k, Scheme: k.Schemes[0], Path: path}
}

// Parse parses a URL of this kind, given without its scheme. An error is a *URLError. Except for
// the name of an unknown setting, it does not repeat what Parse does not understand, which could be
// a password.
func (k *Kind) Parse(scheme, rest string) (*Location, error) {
	at := &Location{Kind: k, Scheme: scheme}
	if k.Server {
		return at, at.parseServer(rest)
	}
	path, query, _ := strings.Cut(rest, "?")
	at.Path = strings.TrimPrefix(path, "//") // sqlite:///var/lib/locks.db
	others, err := at.takeSettings(query)
	switch {
	case err != nil:
		return nil, err
	case others != "":
		key, _, _ := strings.Cut(others, "=")
		return nil, at.UnknownSetting(key, "allow is the only one")
	case k.NeedsPath && at.Path == "":
		return nil, BadURL("%s: needs a path: %s", scheme, k.Example)
	}
	return at, nil
}

// parseServer takes apart what follows the scheme.
func (at *Location) parseServer(rest string) error {
	rest, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return BadURL("%s: a store on a server is written as in %s", at.Scheme, at.Kind.Example)
	}
	// The user ends where the drivers say it does: at the first @ before a slash.
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		at.User, at.Password, at.HasPassword = strings.Cut(rest[:i], ":")
		at.HasUser, rest = true, rest[i+1:]
	}
	if strings.Contains(rest, "@") {
		return BadURL("%s: an @ in the URL that is not behind the user: in a password write %%40 for @ and %%2F for /", at.Scheme)
	}
	rest, query, _ := strings.Cut(rest, "?")
	at.Host = rest
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		at.Host, at.Database = rest[:i], rest[i:]
	}
	for _, part := range []string{at.User, at.Password, at.Database} {
		if _, err := url.PathUnescape(part); err != nil {
			return BadURL("%s: the URL cannot be read: in a user, password or database write %%25 for %%", at.Scheme)
		}
	}
	at.secrets = append(at.secrets, at.Password)
	for _, name := range at.Kind.Secrets {
		at.secrets = append(at.secrets, os.Getenv(name))
	}
	var err error
	if at.Query, err = at.takeSettings(query); err != nil {
		return err
	}
	if at.Kind.Schema != nil && (at.Schema != "" || at.Prefix != "") {
		if _, err := at.Kind.Schema(at); err != nil {
			return BadURL("%s", at.Redact(err.Error()))
		}
	}
	return nil
}

// takeSettings takes our settings out of a query; the others are the driver's.
func (at *Location) takeSettings(query string) (others string, err error) {
	var left []string
	for pair := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(pair, "=")
		raw := value
		for _, part := range []*string{&key, &value} {
			if *part, err = url.QueryUnescape(*part); err != nil {
				return "", BadURL("%s: what follows ? in the URL cannot be read: write %%25 for a %%", at.Scheme)
			}
		}
		ours := slices.Contains(at.Kind.Settings, key)
		switch {
		case pair == "":
			continue
		case ours && key == "allow":
			at.Allow = append(at.Allow, strings.Split(value, ",")...)
		case ours && key == "schema":
			at.Schema = value
		case ours && key == "prefix":
			at.Prefix = value
		case ours && key == "socket":
			at.Socket = value
		default:
			left = append(left, pair)
		}
		switch {
		case IsSecret(key):
			at.secrets = append(at.secrets, value, raw)
		case ours || slices.Contains(whereKeys, key):
			at.shown = append(at.shown, pair)
		}
	}
	return strings.Join(left, "&"), nil
}

// whereKeys are the driver settings that say which database it is.
var whereKeys = []string{"host", "port", "dbname", "user", "service", "socket", "dc"}

// Sets says whether the driver's part of the query has a setting.
func (at *Location) Sets(key string) bool {
	settings, _ := url.ParseQuery(at.Query)
	return settings.Has(key)
}

// Hosts are the hosts of the URL with their ports. One without has that of the last, or else port.
func (at *Location) Hosts(port string) (hosts []string, err error) {
	for i, host := range slices.Backward(strings.Split(at.Host, ",")) {
		name, its, err := net.SplitHostPort(host)
		if err != nil {
			name, its = strings.Trim(host, "[]"), port
		} else if i == strings.Count(at.Host, ",") {
			port = its
		}
		if name == "" {
			return nil, BadURL("%s names no host: write it as in %s", at, at.Kind.Example)
		}
		hosts = append(hosts, net.JoinHostPort(name, its))
	}
	slices.Reverse(hosts)
	return hosts, nil
}

// Login returns the user and password of the URL, or else of the environment variables with the
// prefix Kind.SendsPassword.
func (at *Location) Login() (user, password string, err error) {
	env := at.Kind.SendsPassword
	user, _ = url.PathUnescape(at.User)
	user = cmp.Or(user, os.Getenv(env+"_USER"))
	if at.HasPassword {
		password, _ = url.PathUnescape(at.Password)
		return user, password, nil
	}
	if password = os.Getenv(env + "_PASSWORD"); password != "" {
		return user, password, nil
	}
	if path := os.Getenv(env + "_PASSWORD_FILE"); path != "" {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", "", BadURL("%s_PASSWORD_FILE: %v", env, err)
		}
		password = strings.TrimRight(string(text), "\r\n")
	}
	return user, password, nil
}

// String is the URL as it may be shown: without secrets, and fit for a terminal.
func (at *Location) String() string {
	s := at.Scheme + ":" + at.Path
	if at.Kind.Server {
		s = at.Scheme + "://"
		if at.User != "" {
			s += at.User + "@"
		}
		s += at.Host + at.Database
	}
	if len(at.shown) > 0 {
		s += "?" + strings.Join(at.shown, "&")
	}
	return printable.Escape(s)
}

// Redact takes this store's secrets out of a message, and those of all URLs and connection
// strings in it, and makes it one line that is fit for a terminal. What String shows anyway
// (a user name that equals the password, say) is no secret.
func (at *Location) Redact(text string) string {
	var secrets []string
	for _, s := range at.secrets {
		plain, _ := url.PathUnescape(s)
		secrets = append(secrets, s, plain)
	}
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	for _, s := range secrets {
		if s != "" && !strings.Contains(at.String(), s) {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	return printable.Escape(Redact(printable.OneLine(text)))
}

// lazily compiles an expression when it is needed: many programs need none.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

var (
	secretKey = lazily(`(?i)pass|pwd|secret|token`)
	passwords = lazily(`(//[^:@/\s]*):\S*@`)
	settings  = lazily(`(?i)((?:[a-z_]*pass[a-z]*|pwd|secret|token)=)('(?:[^'\\]|\\.)*'|[^&\s]+)`)
	goDSN     = lazily(`([^\s:@/]+):\S*@((?:tcp|unix)\()`)
)

// IsSecret says whether a setting of this name is a secret.
func IsSecret(key string) bool { return secretKey().MatchString(key) }

// Redact takes passwords out of all URLs and connection strings in a text. It is the last
// filter before a program shows the text: it recognizes forms, and knows no secrets.
func Redact(text string) string {
	text = passwords().ReplaceAllString(text, "$1@")
	text = goDSN().ReplaceAllString(text, "$1@$2")
	return settings().ReplaceAllString(text, "$1…")
}
