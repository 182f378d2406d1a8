#!/bin/sh
# State keys in a shared directory, step by step as first described, in plain
# shell: what any program has to do that shares one with Holdfast.
#
#   seed.sh DIR read             prints the key
#   seed.sh DIR write CMD...     runs CMD in a critical section
#
# "Older than one hour" is by the clock of this host, as it was described; LIMIT
# is that hour, in minutes.
set -eu
dir=$1/state
what=$2
shift 2

random() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

# update state/key to new random value
update() {
	new=$(mktemp "$dir/new.XXXXXXXX")
	random >"$new"
	mv -f "$new" "$dir/key"
}

mkdir -p "$dir/pending"
case $what in
read)
	# 1. get directory entries of state/pending
	# 2. if there are pending entries older than one hour: update state/key to
	#    new random value, delete old pending entries
	old=$(find "$dir/pending" -type f -mmin "+${LIMIT:-60}")
	if [ -n "$old" ]; then
		update
		printf '%s\n' "$old" | while IFS= read -r entry; do rm -f "$entry"; done
	fi
	# 3. open file state/key
	# 4. if missing, create a new state/key with random contents
	[ -e "$dir/key" ] || update
	# 5. return contents of state/key
	cat "$dir/key"
	;;
write)
	# creates a randomly named file in state/pending; this constitutes a lease
	lease=$(mktemp "$dir/pending/XXXXXXXX")
	rc=0
	"$@" || rc=$?
	# first updates state/key to a new random value, then deletes the lease; the
	# order of these two events is important
	update
	rm -f "$lease"
	exit "$rc"
	;;
*)
	echo "seed.sh DIR read | seed.sh DIR write CMD..." >&2
	exit 64
	;;
esac
