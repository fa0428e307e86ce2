package cluster

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// Ports are taken from below the range that the kernel gives to outgoing
// connections, so that no client takes the port of a server that is being restarted.
const firstPort, lastPort = 12000, 29999

// portsFile has a byte for each port. Who has been given one locks it until the process ends,
// so that other tests on this machine leave alone what a program is yet to listen on.
var portsFile = sync.OnceValues(func() (*os.File, error) {
	return os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("stoker-e2e-ports-%d", os.Getuid())), os.O_CREATE|os.O_RDWR, 0o600)
})

var (
	portsMu sync.Mutex
	// portsGiven is the set of ports given out by this process.
	portsGiven = map[int]bool{}
)

// FreePort returns a port on 127.0.0.1 that nothing listens on and that neither this
// process has been given before nor another one of these tests that still runs.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func freePort() (int, error) {
	portsMu.Lock()
	defer portsMu.Unlock()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1) //nolint:gosec // nobody gains by guessing it
		if portsGiven[port] {
			continue
		}
		free, err := lockPort(port)
		if err != nil {
			return 0, err
		}
		if !free {
			continue
		}
		l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(loopback), Port: port})
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		portsGiven[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("no free port between %d and %d in 1000 tries", firstPort, lastPort)
}

// lockPort reports whether no other process holds the port, which from then on is ours.
func lockPort(port int) (free bool, err error) {
	f, err := portsFile()
	if err != nil {
		return false, err
	}
	err = syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK, Start: int64(port), Len: 1})
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		return false, nil
	}
	return err == nil, err
}
