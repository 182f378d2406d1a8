// Package story has processes take locks over a real store, tell what they see as
// lines of JSON with stamps of one kernel clock, and judges what they told: who
// believed to hold what, and when, is all that counts.
package story
