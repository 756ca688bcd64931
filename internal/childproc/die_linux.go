package childproc

import "syscall"

// dieWithParent makes the kernel kill the child when this process ends in any way.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
