package main

// The rules of the proof of death, by which nobody waits for a TTL: whatever is
// not the very file that a session has locked proves nothing.
var proven = []mutant{
	{"proof: a file that looks like it is believed", "X21", []edit{{"proof_linux.go",
		"if string(text[:n]) != want {", "if n == 0 {"}}, library("TestProofIsOfOneFile/^copy$")},
	{"proof: of whatever session", "X21", []edit{{"proof_linux.go",
		`\n", session, boot, stat.Dev`, `\n", "", boot, stat.Dev`}}, library("TestProofIsOfOneFile/^name_of")},
	{"proof: of whatever boot", "X21", []edit{{"proof_linux.go",
		`\n", session, boot, stat.Dev`, `\n", session, "", stat.Dev`}}, library("TestProofIsOfOneFile/^another_boot")},
	{"proof: on whatever device", "X21", []edit{{"proof_linux.go",
		"stat.Dev, stat.Ino)", "0, stat.Ino)"}}, library("TestProofIsOfOneFile/^copy_of_a_disk$")},
	{"proof: whatever inode", "X21", []edit{{"proof_linux.go",
		"stat.Dev, stat.Ino)", "stat.Dev, 0)"}}, library("TestProofIsOfOneFile/^copy$")},
	{"proof: of a boot that is not known", "X21", []edit{{"proof.go",
		`p.boot != "" && `, ""}}, library("TestNoProofWithoutBoot")},
	{"proof: on an overlay", "X21", []edit{{"internal/filesystem/filesystem_linux.go",
		"	case unix.OVERLAYFS_SUPER_MAGIC, bcachefs:\n", "	case bcachefs:\n"}}, library("TestNoProofOnOverlay")},
	{"proof: of who has ended in order", "X21", []edit{{"proof.go",
		"	if !named(file) {", "	if false {"}}, library("TestNoProofOfTheEnd")},
	{"proof: the lock is not asked for", "X21", []edit{{"proof.go",
		"if file == nil || !canLock(file) {", "if file == nil {"}}, library("TestProofIsOfOneFile/^the_file_itself$")},
	{"proof: what the living have is tidied up", "X21", []edit{{"proof.go",
		" && abandoned(path) {", " {"}}, library("TestProofsAreTidied")},
	{"proof: what is young is tidied up", "X21", []edit{{"proof.go",
		" && time.Since(info.ModTime()) >= keep ", " && keep > 0 "}}, library("TestProofsAreTidied")},
	{"proof: since when a session was seen is forgotten", "X21", []edit{{"proof.go",
		"			keep = MaxTTL\n", "			keep = leftover\n"}}, library("TestProofsAreTidied")},
	{"proof: what others keep there is tidied up", "X21", []edit{{"proof.go",
		"			continue // not ours\n", ""}}, library("TestProofsAreTidied")},
	{"proof: nothing is tidied up", "X21", []edit{{"proof.go",
		"			os.Remove(path)\n", ""}}, library("TestProofsAreTidied")},
}
