package models

// A Case is a model in a world of a certain size, and what has to come of it.
type Case struct {
	Model string // what is modelled
	World string // how large, with which faults, and what is broken on purpose
	Must  string // the violation that has to be found; "": it holds
	Size  Size
	run   func(Size) Result
}

// Size says when a case is run.
type Size int

const (
	Quick  Size = iota // always
	Medium             // with -full
)

// Run searches the case.
func (c Case) Run() Result { return c.run(c.Size) }

// of makes a case of a model.
func of[S comparable](name, world, must string, size Size, m Model[S]) Case {
	return Case{Model: name, World: world, Must: must, Size: size, run: func(size Size) Result {
		m.Limit = map[Size]int{Quick: 3e6, Medium: 40e6}[size]
		return m.Explore()
	}}
}

// Cases are all there are.
func Cases() (all []Case) {
	for _, cases := range [][]Case{
		gerritCases(), spindleCases(), serviceManagerCases(), titanCases(), gitalyCases(), ttlCases(), sweepCases(), fenceCases(), setCases(),
		breakCases(), claimsCases(), cloneCases(), failoverCases(), sqlCases(),
	} {
		all = append(all, cases...)
	}
	return all
}
