// Package replicas breaks what serves locks over HTTP. Two processes of `holdfast serve` on one
// database (one on SQLite) are behind a balancer that knows nothing of their health, and sends
// requests twice, the second time late. Replicas and clients are killed, and stopped and continued,
// while clients hold and wait through them, in one line with Go programs and `holdfast run`. A
// client is judged by what it believes itself: from the moment at which it is told that it holds,
// to its own deadline or its release.
package replicas
