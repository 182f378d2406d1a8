// Package replicas breaks what serves locks over HTTP. Two processes of `holdfast serve` on one
// PostgreSQL are behind a balancer that knows nothing of their health. They are killed, and
// stopped and continued, while clients hold and wait through them; requests are sent twice, the
// second time late. A client is judged by what it believes itself: from the moment at which it is
// told that it holds, to its own deadline or its release.
package replicas
