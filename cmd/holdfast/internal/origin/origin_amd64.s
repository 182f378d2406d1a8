//go:build linux

#include "textflag.h"

// The kernel calls handler with the signal in DI, siginfo in SI, and the context in DX.
TEXT ·handler(SB),NOSPLIT|NOFRAME,$0
	MOVL	8(SI), AX	// si_code
	CMPL	AX, $0x80	// SI_KERNEL: the terminal
	JEQ	old
	MOVL	DI, CX
	MOVQ	$1, AX
	SHLQ	CX, AX
	LOCK
	ORQ	AX, ·sent(SB)
old:
	MOVQ	·next(SB), AX
	JMP	AX

TEXT ·address(SB),NOSPLIT,$0-8
	LEAQ	·handler(SB), AX
	MOVQ	AX, ret+0(FP)
	RET
