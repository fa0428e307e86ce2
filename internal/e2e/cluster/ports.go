package cluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports are taken from below the range that the kernel gives to outgoing
// connections, so that no client takes the port of a server that is being restarted.
const firstPort, lastPort = 12000, 29999

var (
	portsMu sync.Mutex
	// portsGiven is the set of ports given out by this process.
	portsGiven = map[int]bool{}
)

// FreePort returns a port on 127.0.0.1 that nothing listens on and that this
// process has not been given before.
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
