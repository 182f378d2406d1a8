package main

// The rules of the Cassandra store: a write time-out of type CAS says nothing
// (D20), and nothing but lightweight transactions at SERIAL counts (X15).
var cql = table{"cassandra", []mutant{
	// What became of a write.
	{"cql: the attempt's id is not looked at", "D20", []edit{{"cassandra/store.go",
		"case met.there && bytes.Equal(met.attempt, a.id):",
		"case false && bytes.Equal(met.attempt, a.id):"}}, onCassandra("TestP20WriteTimeoutIsUnknown")},
	{"cql: the attempt's id is not looked at when an answer is lost", "D20", []edit{{"cassandra/store.go",
		"case met.there && bytes.Equal(met.attempt, a.id):",
		"case false && bytes.Equal(met.attempt, a.id):"}}, onCassandra("TestLostAnswer")},
	{"cql: who was followed has lost", "D20", []edit{{"cassandra/store.go",
		"case !a.unknown, met.there && old != 0 && met.follows == old:",
		"case true:"}}, onCassandra("TestFollowedSinceIsUnknown")},
	{"cql: a key without a row was never taken", "D20", []edit{{"cassandra/store.go",
		"		case applied, a.unknown, len(met.value) > 0:",
		"		case applied, a.unknown && met.there, len(met.value) > 0:"}}, onCassandra("TestTakenAndSweptIsUnknown")},
	{"cql: what another has followed is unknown", "P6", []edit{{"cassandra/store.go",
		"case !a.unknown, met.there && old != 0 && met.follows == old:",
		"case !a.unknown:"}}, onCassandra("TestFollowedInsteadIsLost")},
	{"cql: an answer after none is believed", "D20", []edit{{"cassandra/call.go",
		"			unknown = unknown || !errors.Is(err, gocql.ErrNoConnections)\n",
		""}}, onCassandra("TestFollowedSinceIsUnknown")},
	{"cql: the driver sends again", "D18", []edit{{"cassandra/call.go",
		".RetryPolicy(nil)", ""}}, onCassandra("TestFollowedSinceIsUnknown")},
	{"cql: the driver sends again, and again", "D18", []edit{{"cassandra/call.go",
		".RetryPolicy(nil)", ""}}, onCassandra("TestDriverDoesNotRetry")},
	{"cql: what is refused is unknown", "D20", []edit{{"cassandra/store.go",
		"	case !a.unknown && !unknown && (refused(err) || err == driver.ErrClosed):",
		"	case false:"}}, onCassandra("TestRefusedIsNotUnknown")},
	{"cql: a table has the columns that it had before it was made", "P6", []edit{{"cassandra/settings.go",
		"len(f.columns) == 0 && try < 10;", "len(f.columns) == 0 && try < 0;"}}, onCassandra("TestMigrateWhileItIsCreated")},

	// What comes late.
	{"cql: a take does not look at the version", "R3", []edit{{"cassandra/store.go",
		"if value = 0x and version > 0 and version < ? and",
		"if value = 0x and version > 0 and version != ? and"}}, onCassandra("TestLateStatements")},
	{"cql: a follow does not look at the version", "R1", []edit{{"cassandra/store.go",
		"(set + `if version = ?` + told)",
		"(set + `if version >= ?` + told)"}}, onCassandra("TestLateStatements")},
	{"cql: all placeholders are alike", "R2", []edit{{"cassandra/store.go",
		"{ return -2 - int64(binary.BigEndian.Uint64(random())>>2) }",
		"{ return -2 - int64(binary.BigEndian.Uint64(random())>>63>>1) }"}}, onCassandra("TestLateFill")},

	// Versions, the floor and sweeps.
	{"cql: the floor is read before the placeholder", "R2", []edit{
		{"cassandra/store.go", "	for try := 0; ; try++ {\n		switch {\n		case err != nil:\n", "	early, _ := a.s.floor(ctx)\n	for try := 0; ; try++ {\n		switch {\n		case err != nil:\n"},
		{"cassandra/store.go", "if floor, err = a.s.floor(ctx); err != nil {", "if floor = early; false {"}}, onCassandra("TestFloorIsReadAfterThePlaceholder")},
	{"cql: the floor is ignored", "R2", []edit{{"cassandra/store.go",
		"version = max(floor+1, now)", "version = max(floor-floor, now)"}}, onCassandra("TestFloorIsReadAfterThePlaceholder")},
	{"cql: no floor is a floor", "R2", []edit{{"cassandra/sweep.go",
		"		err = errNoFloor\n	}\n	return version, err",
		"		err = nil\n	}\n	return version, err"}}, onCassandra("TestNoFloor")},
	{"cql: rows go before the floor is raised", "R2", []edit{
		{"cassandra/sweep.go", "	if err == nil && highest > 0 {\n		err = s.raise(ctx, highest)\n	}\n", "	defer func() { s.raise(ctx, highest) }()\n"}}, onCassandra("TestFloorIsRaisedBeforeRowsGo")},
	{"cql: a sweep removes what was taken", "R2", []edit{{"cassandra/store.go",
		"delete from {records} where space = ? and name = ? if version = ?",
		"delete from {records} where space = ? and name = ? if version >= ?"}}, onCassandra("TestSweepSparesWhatIsTaken")},
	{"cql: a version is the clock when a name is taken", "X9", []edit{{"cassandra/store.go",
		"version := max(met.version+1, now)", "version := max(met.version-met.version, now)"}}, onCassandra("TestVersionsOutrunTheClock")},
	{"cql: a version is the clock when a name is followed", "X9", []edit{{"cassandra/store.go",
		"max(w.Old+1, time.Now().UnixMicro())", "max(0, time.Now().UnixMicro())"}}, onCassandra("TestVersionsOutrunTheClock")},

	// Rows that are likely not there.
	{"cql: a new name after a new one is updated first", "P6", []edit{{"cassandra/store.go",
		"if !session && (seen || !a.s.rows.lastNew.Load()) {", "if !session {"}}, onCassandra("TestNewNamesInARow")},
	{"cql: names are taken for new whatever was met", "P6", []edit{{"cassandra/store.go",
		"a.s.rows.lastNew.Store(met.version < 0)", "a.s.rows.lastNew.Store(true)"}}, onCassandra("TestTakenForNew")},
	{"cql: what was taken for new holds nothing", "R1", []edit{{"cassandra/store.go",
		"			applied, a.unknown = false, false //", "			met.value, applied, a.unknown = nil, false, false //"}}, onCassandra("TestTakenForNew")},
	{"cql: a row that was seen is there", "P6", []edit{{"cassandra/store.go",
		"		case !met.there:\n", "		case !met.there && !seen:\n"}}, onCassandra("TestSeenAndSwept")},

	// Consistency.
	{"cql: a record is read at QUORUM", "X15", []edit{{"cassandra/store.go",
		"q.Consistency(s.calls.serial).ScanContext(", "q.ScanContext("}}, onCassandra("TestX15LightweightTransactionsOnly")},
	{"cql: a stale read is taken for a look", "X15", []edit{{"cassandra/store.go",
		"		recs[i], err = s.loadOne(ctx, keys[i])\n		return err\n",
		"		seen, err := s.staleLoad(ctx, keys[i:i+1])\n		if err == nil {\n			recs[i] = seen[0]\n		}\n		return err\n"}}, onCassandra("TestX15LightweightTransactionsOnly")},
	{"cql: transactions are local though nobody said so", "X15", []edit{{"cassandra/call.go",
		"c.serial, c.quorum = gocql.Serial, gocql.Quorum", "c.serial, c.quorum = gocql.LocalSerial, gocql.Quorum"}}, onCassandra("TestX15LightweightTransactionsOnly/local=false")},
	{"cql: rows have a TTL", "X15", []edit{{"cassandra/schema.cql",
		") with comment = 'holdfast 1'", ") with default_time_to_live = 600 and comment = 'holdfast 1'"}}, onCassandra("TestX15LightweightTransactionsOnly")},
	{"cql: a write has a TTL", "X15", []edit{{"cassandra/store.go",
		"const set = `update {records} set", "const set = `update {records} using ttl 600 set"}}, onCassandra("TestX15LightweightTransactionsOnly")},
	{"cql: a sweep deletes without a transaction", "X15", []edit{
		{"cassandra/store.go", "delete from {records} where space = ? and name = ? if version = ?", "delete from {records} where space = ? and name = ?"},
		{"cassandra/sweep.go", "[]any{int8(k.Space), []byte(k.Name), rows[i].version}", "[]any{int8(k.Space), []byte(k.Name)}"},
		{"cassandra/sweep.go", "			_, gone[i], err = scan(ctx, q)\n", "			err, gone[i] = q.ExecContext(ctx), true\n"}}, onCassandra("TestX15LightweightTransactionsOnly")},

	// Coordinators.
	{"cql: any node is asked", "P6", []edit{{"cassandra/call.go",
		"			weight = mix(f.Sum64())\n", "			weight = mix(f.Sum64()) ^ rand.Uint64()\n"}}, onCassandra("TestOneCoordinator")},
	{"cql: a deaf node is not left", "P6", []edit{{"cassandra/call.go",
		"isDeaf := c.deaf.is(id) ||", "isDeaf := false ||"}}, onCassandra("TestUnresponsiveCoordinator")},
	{"cql: a node that cannot is asked again", "P6", []edit{{"cassandra/call.go",
		"|| failed[id] > 1", "|| failed[id] > 100"}}, onCassandra("TestDriverDoesNotRetry")},
	{"cql: contention is given up", "P6", []edit{{"cassandra/call.go",
		"if !again(err) && try >= len(others) {", "if try >= len(others) {"}}, onCassandra("TestBusy")},
	{"cql: contention is silence", "P3", []edit{{"cassandra/call.go",
		"case errors.As(err, &write) && write.WriteType == \"CAS\", errors.As(err, &unknown),",
		"case false && errors.As(err, &write) && write.WriteType == \"CAS\", false && errors.As(err, &unknown),"}}, onCassandra("TestBusy")},
	{"cql: heartbeats wait for names", "P6", []edit{{"cassandra/store.go",
		"	return c.beats\n", "	return c.names\n"}}, onCassandra("TestLanes")},
	{"cql: all at once", "P6", []edit{{"cassandra/call.go",
		"func (l lane) enter(ctx context.Context) error {\n", "func (l lane) enter(ctx context.Context) error {\n	if len(l) == cap(l) {\n		<-l\n	}\n"}}, onCassandra("TestLanes")},
	{"cql: a list drops what others have read", "P6", []edit{{"cassandra/read.go",
		"	l.rest[at] = append(l.rest[at], listing{names, read, gone})\n",
		"	clear(l.rest)\n	l.rest[at] = append(l.rest[at], listing{names, read, gone})\n"}}, onCassandra("TestListsSideBySide")},
	{"cql: a fenced update without an answer is sent again", "R7", []edit{{"cassandra/fence.go",
		"c.sendWhile(ctx, answered, ",
		"c.send(ctx, "}}, onCassandra("TestFenceWithoutAnswer")},
}}

// onCassandra is a test of the store against a cluster.
func onCassandra(run string) test {
	return test{"./cassandra", run + "$"}
}
