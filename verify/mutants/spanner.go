package main

// The rules of the Spanner store.
var onCommits = table{"spanner", []mutant{
	{"spanner: a take does not look", "R3", []edit{{"spanner/spanner.go",
		"		return len(r.value) == 0\n", "		return true\n"}}, onSpanner("TestStore/.*")},
	{"spanner: a follow does not look", "R1", []edit{{"spanner/spanner.go",
		"	return w.Old > 0 && r.version == w.Old", "	return w.Old > 0"}}, onSpanner("TestStore/.*")},
	{"spanner: what never was can be followed", "R1", []edit{{"spanner/spanner.go",
		"	return w.Old > 0 && r.version == w.Old", "	return r.version == w.Old"}}, onSpanner("TestStore/.*")},
	{"spanner: reads may be old", "P1", []edit{{"spanner/spanner.go",
		"		txn := s.client.Single()\n", "		txn := s.client.Single().WithTimestampBound(spanner.ExactStaleness(time.Second))\n"}}, onSpanner("TestStore/.*")},
	{"spanner: what an aborted transaction has read is kept", "R1", []edit{{"spanner/spanner.go",
		"		if found, err = rows(", "		if found != nil {\n		} else if found, err = rows("}}, onSpanner("TestReruns")},
	{"spanner: all names are in one shard", "P8", []edit{{"spanner/spanner.go",
		"	return int64(f.Sum32() % shards)", "	return int64(f.Sum32() % 1)"}}, onSpanner("TestShards")},
	{"spanner: batches are not cut", "P8", []edit{{"spanner/spanner.go",
		"maxRows  = 200", "maxRows  = 20000"}}, onSpanner("TestLargeBatches")},
	{"spanner: batches are not cut by size", "P8", []edit{{"spanner/spanner.go",
		"size+len(w.Value) > maxBytes || ", ""}}, onSpanner("TestLargeBatches")},
	{"spanner: a sweep takes what is young", "P8", []edit{{"spanner/spanner.go",
		"byte_length(value) = 0 and written <= @before", "byte_length(value) = 0 and @before is not null"}}, onSpanner("TestStore/sweep.*")},
	{"spanner: a sweep takes what holds", "R2", []edit{{"spanner/spanner.go",
		"where byte_length(value) = 0 and written <= @before", "where written <= @before"}}, onSpanner("TestStore/sweep.*")},
	{"spanner: names of one shard come before those of the next", "P8", []edit{{"spanner/spanner.go",
		"			order by name limit @n)) as name\n		order by name limit @n`", "			order by name limit @n)) as name\n		limit @n`"}}, onSpanner("TestStore/keys.*")},
	{"spanner: a fence does not look", "P4", []edit{{"spanner/fence.go",
		"	next, err := rec.Fence(name, token, last.Int64)\n", "	next, err := rec.Fence(name, token, last.Int64)\n	err = nil\n"}}, onSpanner("TestFences")},
	{"spanner: a fence looks outside the transaction", "P4", []edit{{"spanner/fence.go",
		"	err := txn.Read(", "	err := s.client.Single().Read("}}, onSpanner("TestFenceHoldsToTheCommit")},
	{"spanner: a fence does not keep its token", "P4", []edit{{"spanner/fence.go",
		"	if err != nil || next == last.Int64 {", "	if err != nil || next > 0 {"}}, onSpanner("TestFenceHandOff")},
	{"spanner: a table that deletes its rows is taken", "R16", []edit{{"spanner/schema.go",
		`	if deletes != "" {`, `	if deletes == "x" {`}}, onSpanner("TestVerify/.*")},
	{"spanner: a column without commit timestamps is taken", "R2", []edit{{"spanner/schema.go",
		`			if stamped {`, `			if stamped || name == "written" {`}}, onSpanner("TestVerify/.*")},
}}

func onSpanner(run string) test { return test{"./spanner", run + "$"} }
