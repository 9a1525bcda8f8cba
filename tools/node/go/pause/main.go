// The container that holds a pod's namespaces. It waits, reaps orphans, and ends when asked to.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			// One signal may stand for several children.
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 && err != syscall.EINTR {
				break
			}
		}
	}
}
