// Package origin tells signals that a process sent from those of the terminal.
//
// A key such as Ctrl-C interrupts all processes of the foreground job, the command
// that `holdfast run` started included, while `kill` and `docker stop` interrupt
// `holdfast run` alone. The kernel says which it was in si_code, which os/signal does
// not hand on. So a few instructions in front of the runtime's handler note it.
//
// Rejected: signalfd, which needs the signal blocked in all threads of the runtime;
// another process in the job as a witness, which costs a process for each command; and
// passing the signal on when the command has not ended for a while, which interrupts
// twice a command that handles the key and goes on.
package origin
