package main

// The rules of the proof of death, by which nobody waits for a TTL: whatever is
// not the very file that a session has locked proves nothing.
var proven = table{"proof", []mutant{
	{"proof: a file that looks like it is believed", "X21", []edit{{"internal/liveness/liveness_linux.go",
		"if string(text[:n]) != want {", "if n == 0 {"}}, alive("TestProofIsOfOneFile/^copy$")},
	{"proof: of whatever session", "X21", []edit{{"internal/liveness/liveness_linux.go",
		`\n", session, boot, stat.Dev`, `\n", "", boot, stat.Dev`}}, alive("TestProofIsOfOneFile/^name_of")},
	{"proof: of whatever boot", "X21", []edit{{"internal/liveness/liveness_linux.go",
		`\n", session, boot, stat.Dev`, `\n", session, "", stat.Dev`}}, alive("TestProofIsOfOneFile/^another_boot")},
	{"proof: on whatever device", "X21", []edit{{"internal/liveness/liveness_linux.go",
		"stat.Dev, stat.Ino)", "0, stat.Ino)"}}, alive("TestProofIsOfOneFile/^copy_of_a_disk$")},
	{"proof: whatever inode", "X21", []edit{{"internal/liveness/liveness_linux.go",
		"stat.Dev, stat.Ino)", "stat.Dev, 0)"}}, alive("TestProofIsOfOneFile/^copy$")},
	{"proof: of a boot that is not known", "X21", []edit{{"internal/liveness/liveness.go",
		`p.boot != "" && `, ""}}, alive("TestNoProofWithoutBoot")},
	{"proof: in a directory of another user", "X21", []edit{{"internal/liveness/liveness.go",
		" && !strangers(xdg) {", " {"}}, alive("TestNoProofInAStrangersDirectory")},
	{"proof: on an overlay", "X21", []edit{{"internal/filesystem/filesystem_linux.go",
		"	case unix.OVERLAYFS_SUPER_MAGIC, bcachefs:\n", "	case bcachefs:\n"}}, alive("TestNoProofOnOverlay")},
	{"proof: of who has ended in order", "X21", []edit{{"internal/liveness/liveness.go",
		"	if !named(file) {", "	if false {"}}, alive("TestNoProofOfTheEnd")},
	{"proof: the lock is not asked for", "X21", []edit{{"internal/liveness/liveness.go",
		"if file == nil || !canLock(file) {", "if file == nil {"}}, alive("TestProofIsOfOneFile/^the_file_itself$")},
	{"proof: what the living have is tidied up", "X21", []edit{{"internal/liveness/liveness.go",
		" && abandoned(path) {", " {"}}, alive("TestProofsAreTidied")},
	{"proof: what is young is tidied up", "X21", []edit{{"internal/liveness/liveness.go",
		"old := time.Since(info.ModTime()) >= keep ||", "old := keep > 0 ||"}}, alive("TestProofsAreTidied")},
	{"proof: since when a session was seen is forgotten", "X21", []edit{{"internal/liveness/liveness.go",
		"			keep = record.MaxTTL\n", "			keep = leftover\n"}}, alive("TestProofsAreTidied")},
	{"proof: what others keep there is tidied up", "X21", []edit{{"internal/liveness/liveness.go",
		"			continue // not ours\n", ""}}, alive("TestProofsAreTidied")},
	{"proof: sightings gather", "P8", []edit{{"internal/liveness/liveness.go",
		"sightings > mostSightings && overLong(path)", "sightings < 0 && overLong(path)"}}, alive("TestSightingsAreBounded")},
	{"proof: sightings of the living go when they are many", "P8", []edit{{"internal/liveness/liveness.go",
		"sightings > mostSightings && overLong(path)", "sightings > mostSightings"}}, alive("TestSightingsAreBounded")},
	{"proof: nothing is tidied up", "X21", []edit{{"internal/liveness/liveness.go",
		"			os.Remove(path)\n", ""}}, alive("TestProofsAreTidied")},
}}

func alive(run string) test { return test{"./internal/liveness", run} }
