package contract_test

import (
	"testing"

	"go.uber.org/goleak"

	"stoker.dev/stoker/actuator/contract"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestMemoryKeepsTheContract shows that the contract can be kept.
func TestMemoryKeepsTheContract(t *testing.T) {
	contract.Run(t, func(*testing.T) contract.Backend { return contract.NewMemory(6) })
}
