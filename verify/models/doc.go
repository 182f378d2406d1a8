// Package models checks protocols by explicit-state search: every state that a
// small world can get into, by every interleaving of steps, with every fault that
// its bounds allow. There are models of Holdfast's protocol, variants of them with one
// rule broken on purpose, and the five systems that Holdfast comes from as they were
// written down. What has to fail must fail, for the stated reason, or the test
// of this package fails: a model that cannot fail proves nothing.
//
// A model is not the code: it says that the rules are right, if the model has them
// right. docs/models.md has what each of them contains and what came of it.
package models
