//go:build !linux

package childproc

import "syscall"

// dieWithParent: other systems have no such feature; Stop and Kill still work.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
