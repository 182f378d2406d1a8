//go:build linux

#include "textflag.h"

// The kernel calls handler with the signal in R0, siginfo in R1, and the context in R2.
TEXT ·handler(SB),NOSPLIT|NOFRAME,$0
	MOVW	8(R1), R3	// si_code
	CMPW	$0x80, R3	// SI_KERNEL: the terminal
	BEQ	old
	MOVD	$1, R3
	LSL	R0, R3, R3
	MOVD	$·sent(SB), R4
again:
	LDAXR	(R4), R5
	ORR	R3, R5, R5
	STLXR	R5, (R4), R6
	CBNZ	R6, again
old:
	MOVD	·next(SB), R3
	JMP	(R3)

TEXT ·address(SB),NOSPLIT,$0-8
	MOVD	$·handler(SB), R3
	MOVD	R3, ret+0(FP)
	RET
