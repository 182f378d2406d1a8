// Package git tests holdfast's state keys and cache with git: a bare repository
// of ten thousand refs, whose advertisement is served from the cache while
// pushes change it. Its tests are all there is in it.
//
// Each process writes down, by a clock that they share, when a push began and
// had returned, and what a reader was told between which two moments. A judge
// then says of each answer whether git itself could have given it.
package git
