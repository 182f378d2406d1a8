package serve

import (
	"net/http"
	"sync"
	"time"
)

// The limits of one server. None is a setting: start another replica if they are too low.
const (
	maxBody        = 64 << 10
	maxHeader      = 16 << 10
	maxNames       = 64    // of one hold
	maxBeats       = 1000  // ids of one request
	maxConnections = 20000 // of all listeners
	maxWaiting     = 2000  // requests of one principal that wait
	ratePerSecond  = 50    // requests of one principal,
	rateBurst      = 500   // and how many at once
	headerTimeout  = 5 * time.Second
	bodyTimeout    = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	writeTimeout   = 10 * time.Second // for each answer, and each event of a stream
	storeTimeout   = 5 * time.Second  // for each call; then its outcome is unknown
)

// patient gives the client some seconds from now to read what is written.
func patient(w http.ResponseWriter) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // not every writer can
}

// limits count what each principal does.
type limits struct {
	mu   sync.Mutex
	each map[string]*account
}

// An account is what one principal does.
type account struct {
	tokens  float64 // requests that it may send at once
	at      time.Time
	waiting int
}

func (l *limits) of(name string, now time.Time) *account {
	if l.each == nil {
		l.each = make(map[string]*account)
	}
	a := l.each[name]
	if a == nil {
		a = &account{tokens: rateBurst, at: now}
		l.each[name] = a
	}
	return a
}

// request counts a request, and reports whether it is allowed.
func (l *limits) request(name string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.of(name, now)
	a.tokens = min(rateBurst, a.tokens+now.Sub(a.at).Seconds()*ratePerSecond)
	a.at = now
	if a.tokens < 1 {
		return false
	}
	a.tokens--
	return true
}

// wait counts a waiting request until done is called; ok reports whether it is allowed.
func (l *limits) wait(name string) (done func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.of(name, time.Now())
	if a.waiting >= maxWaiting {
		return nil, false
	}
	a.waiting++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		a.waiting--
	}, true
}
