// Package access says who a request comes from and what it may do, according to the tokens file,
// the key of a link, client certificates, the user at the other end of a unix socket, and the
// cookies of logins. It refuses no request itself; package serve does.
package access

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A List says who requests come from, and what they may do. It trusts the peer of a unix socket,
// client certificates that the server has verified, the secrets whose hashes are in a tokens file,
// and the cookies that Login gives for them.
type List struct {
	owner string // the principal that is this process's user
	log   *slog.Logger
	key   string // of the link; "": there is none
	link  line   // whose it is

	mu     sync.Mutex
	path   string
	looked time.Time // when the file was last looked at
	seen   os.FileInfo
	lines  []line
}

// A line of a tokens file.
type line struct {
	principal Principal
	kind      string // sha256, cert, unix
	value     string
	text      string // with single spaces between the fields
}

// Open reads a tokens file; path "" means none. The file is read again when it changes. If it
// cannot be used then, what it said before stays in force, and log gets a line. log may be nil.
func Open(path string, log *slog.Logger) (*List, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a := &List{owner: ownUser(), log: log, path: path}
	if path == "" {
		return a, nil
	}
	var err error
	if a.lines, a.seen, err = readTokens(path); err != nil {
		return nil, err
	}
	a.looked = time.Now()
	return a, nil
}

// File is the path of the tokens file; "": there is none.
func (a *List) File() string { return a.path }

func ownUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "uid" + strconv.Itoa(os.Getuid())
}

// NewKey makes a secret that is valid for this run. With it, the user of this process may do
// everything. It is meant for the fragment of a link.
func (a *List) NewKey() (secret string) {
	secret, hash := NewSecret()
	a.key = hash
	a.link = line{kind: "sha256", value: hash, text: "link " + hash,
		principal: Principal{Name: a.owner, Verbs: Everything, Prefixes: []string{""}}}
	return secret
}

// NewSecret draws a secret, and returns it with the hash that a tokens file has of it.
func NewSecret() (secret, hash string) {
	var b [32]byte
	rand.Read(b[:])
	secret = "hf_" + base64.RawURLEncoding.EncodeToString(b[:])
	return secret, hashOf(secret)
}

func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// readTokens reads a tokens file, which only its owner may change and others may not read: the
// hashes in it are what the cookies of logins are signed with.
func readTokens(path string) ([]line, os.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if loose := info.Mode().Perm() & 0o027; loose != 0 && modesMatter {
		return nil, nil, fmt.Errorf("%s can be changed by its group, or read by all users of this host: chmod 600 %s", path, path)
	}
	lines, err := parseTokens(f)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return lines, info, nil
}

var (
	plainName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._@-][A-Za-z0-9._@:/-]{0,63}$`) })
	plainHash = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })
)

// parseTokens reads lines of four or more fields: principal, proof, verbs, prefixes.
func parseTokens(r io.Reader) (lines []line, err error) {
	in := bufio.NewScanner(r)
	for n := 1; in.Scan(); n++ {
		text, _, _ := strings.Cut(in.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		l, err := parseLine(fields)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		lines = append(lines, l)
	}
	return lines, in.Err()
}

func parseLine(fields []string) (l line, err error) {
	if len(fields) < 4 {
		return l, errors.New("needs a principal, a proof, verbs, and the names that it may use (* for all, - for none)")
	}
	name, proof := fields[0], fields[1]
	if !plainName().MatchString(name) {
		return l, fmt.Errorf("the principal %q is not made of letters, digits and ._@:/-", name)
	}
	l.text = strings.Join(fields, " ")
	kind, value, _ := strings.Cut(proof, ":")
	l.kind, l.value = kind, value
	certKind, certName, _ := strings.Cut(value, ":")
	switch {
	case kind == "sha256" && plainHash().MatchString(value):
	case kind == "cert" && slices.Contains([]string{"DNS", "URI", "EMAIL"}, certKind) && certName != "":
	case kind == "unix" && value != "":
	case kind == "sha256": // it could be the secret itself: it is not repeated
		return l, errors.New("sha256: is not followed by 64 hexadecimal digits; holdfast serve token makes such a line")
	default:
		return l, errors.New("the proof is none of sha256:HASH, cert:DNS:NAME, cert:URI:URI, cert:EMAIL:ADDRESS, unix:USER")
	}
	verbs, err := ParseVerbs(fields[2])
	if err != nil {
		return l, err
	}
	l.principal = Principal{Name: name, Verbs: verbs}
	for _, f := range fields[3:] {
		switch f {
		case "-":
		case "*":
			l.principal.Prefixes = append(l.principal.Prefixes, "")
		default:
			prefix, err := url.PathUnescape(f)
			if err != nil {
				return l, fmt.Errorf("the prefix %q: %w", f, err)
			}
			l.principal.Prefixes = append(l.principal.Prefixes, prefix)
		}
	}
	return l, nil
}

// TokenLine returns a line of a tokens file. It refuses what such a line cannot say.
func TokenLine(principal, hash, verbs string, prefixes []string) (string, error) {
	if len(prefixes) == 0 {
		prefixes = []string{"-"}
	}
	fields := []string{principal, "sha256:" + hash, verbs}
	for _, p := range prefixes {
		if p == "" {
			return "", errors.New("a prefix is empty: * is for all names, - for none")
		}
		if p != "*" && p != "-" {
			p = strings.NewReplacer("%2F", "/").Replace(url.PathEscape(p))
		}
		fields = append(fields, p)
	}
	if _, err := parseLine(fields); err != nil {
		return "", err
	}
	return strings.Join(fields, "  "), nil
}

// current returns the lines of the file as it is now; it looks at the file once a second at most.
func (a *List) current() []line {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.path == "" || time.Since(a.looked) < time.Second {
		return a.lines
	}
	a.looked = time.Now()
	info, err := os.Stat(a.path)
	if err == nil && os.SameFile(info, a.seen) && info.ModTime().Equal(a.seen.ModTime()) && info.Size() == a.seen.Size() {
		return a.lines
	}
	lines, info, err := readTokens(a.path)
	if err != nil {
		a.log.Error("the tokens file cannot be used; what it said before still holds", "err", err)
		return a.lines
	}
	a.lines, a.seen = lines, info
	a.log.Warn("the tokens file has changed", "file", a.path, "lines", len(lines))
	return a.lines
}

// find returns the first line with a proof.
func (a *List) find(kind, value string) (line, bool) {
	if kind == "sha256" && a.key != "" && value == a.key {
		return a.link, true
	}
	for _, l := range a.current() {
		if l.kind == kind && l.value == value {
			return l, true
		}
	}
	return line{}, false
}

// Authenticate returns the principal that a request comes from, or nil if it proves none. A wrong
// secret is an error, whatever else the request has. Since a cookie is a proof, the caller must
// refuse what pages of other origins send, with http.CrossOriginProtection.
func (a *List) Authenticate(r *http.Request) (*Principal, error) {
	if secret, given, err := secretOf(r); given || err != nil {
		if err != nil {
			return nil, err
		}
		if l, ok := a.find("sha256", hashOf(secret)); ok {
			return l.as(bySecret), nil
		}
		return nil, errors.New("no principal has this secret (any more)")
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		for _, name := range namesOf(r.TLS.VerifiedChains[0][0]) {
			if l, ok := a.find("cert", name); ok {
				return l.as(byCertificate), nil
			}
		}
	}
	if who, ok := r.Context().Value(peerKey{}).(peer); ok {
		if p := a.peer(who); p != nil {
			return p, nil
		}
	}
	if c, err := r.Cookie(cookieName(r)); err == nil {
		if l, ok := a.checkCookie(c.Value); ok {
			return l.as(byCookie), nil
		}
	}
	return nil, nil
}

func (l line) as(p proof) *Principal {
	principal := l.principal
	principal.proof = p
	return &principal
}

// secretOf is the secret of a request: a bearer token, or the password of basic authentication,
// which is all that some programs can send.
func secretOf(r *http.Request) (secret string, given bool, err error) {
	switch header := r.Header.Values("Authorization"); len(header) {
	case 0:
		return "", false, nil
	case 1:
		scheme, rest, _ := strings.Cut(header[0], " ")
		if strings.EqualFold(scheme, "Bearer") {
			return strings.TrimSpace(rest), true, nil
		}
		if _, password, ok := r.BasicAuth(); ok {
			return password, true, nil
		}
	}
	return "", false, errors.New("send one header Authorization: Bearer SECRET, or Basic with the secret as its password")
}

// namesOf are the names that a certificate is for, as a tokens file writes them.
func namesOf(c *x509.Certificate) (names []string) {
	for _, n := range c.DNSNames {
		names = append(names, "DNS:"+n)
	}
	for _, u := range c.URIs {
		names = append(names, "URI:"+u.String())
	}
	for _, e := range c.EmailAddresses {
		names = append(names, "EMAIL:"+e)
	}
	return names
}
