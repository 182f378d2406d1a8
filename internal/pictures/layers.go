package main

// layers draws what stands on what: users, shell, core, driver, stores.
func layers() []byte {
	c := begin(880, 624, "The layers of Holdfast",
		"A Go program, the command and holdfast serve all use the API of the client. The client is a shell of goroutines, "+
			"clocks and calls around the core, which decides and does no I/O. Below is a driver interface of four methods, "+
			"which each store implements.")

	c.text("dim", 28, 34, "Users")
	users := [3][3]string{
		{"A Go program", `client.Do(ctx, "nightly", …)`, "the API: locks, sets, elections"},
		{"The command", "holdfast run nightly -- …", "with a guard that ends what it ran"},
		{"Any language, over HTTP", "PUT /v1/holds/ID", "holdfast serve; the page for people"},
	}
	for i, u := range users {
		x := 28 + 280*float64(i)
		c.box("sunk", x, 44, 264, 84, 8)
		c.text("title", x+14, 68, u[0])
		c.text("mono", x+14, 91, u[1])
		c.text("small dim", x+14, 113, u[2])
		c.arrow(x+132, 128, x+132, 166)
	}

	c.text("dim", 28, 158, "Shell")
	c.box("sunk", 28, 168, 824, 228, 8)
	c.text("title", 44, 193, "Client")
	c.text("small dim", 96, 193, "goroutines, clocks, calls of the store; one for each process")
	for i, part := range [][2]string{
		{"local queue", "goroutines that want one name"},
		{"session", "the heartbeat, the trust window"},
		{"failure detector", "observes, suspects, declares dead"},
		{"poll loop", "woken by notifications"},
		{"batcher", "what gathers goes in the next call"},
	} {
		y := 208 + 36*float64(i)
		c.box("paper", 44, y, 380, 30, 6)
		c.text("", 56, y+20, part[0])
		c.text("small dim", 182, y+20, part[1])
	}
	c.middle("small dim", 489, 266, "facts, the time")
	c.arrow(432, 276, 546, 276)
	c.middle("small dim", 489, 318, "steps, effects")
	c.arrow(546, 328, 432, 328)
	c.box("soft", 554, 208, 282, 174, 8)
	c.text("title", 570, 232, "Core")
	c.text("small dim", 612, 232, "no clock, no goroutine, no I/O")
	for i, s := range []string{
		"settle and fits: who holds the lock",
		"a name's queue, and its next step",
		"the session and its window",
		"when a session may be declared dead",
		"what is stored, byte for byte",
	} {
		c.text("", 570, 262+25*float64(i), s)
	}
	c.arrow(440, 396, 440, 434)

	c.text("dim", 28, 426, "Driver")
	c.box("sunk", 28, 436, 824, 50, 8)
	c.text("mono", 44, 466, "Load · CompareAndSwap · Keys · Sweep")
	c.text("small dim", 332, 466, "versioned records; where the store can, also")
	c.text("mono", 632, 466, "Watch · Diagnose")
	c.arrow(440, 486, 440, 524)

	c.text("dim", 28, 516, "Stores")
	for i, s := range []string{"sqlite", "postgres", "mysql", "cassandra", "etcd", "spanner", "directory", "memory"} {
		x := 28 + 104*float64(i)
		c.box("sunk", x, 526, 96, 42, 8)
		c.middle("", x+48, 552, s)
	}
	c.line("line", 28, 582, 332, 582)
	c.line("line", 28, 582, 28, 576)
	c.line("line", 332, 582, 332, 576)
	c.middle("small dim", 180, 602, "one implementation, three dialects of SQL")
	c.text("small dim", 356, 602, "for each name a record: who holds it, who waits, and its version")
	return c.end()
}
