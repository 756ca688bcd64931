package mqtt

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/transporttest"
)

func TestMain(m *testing.M) {
	// This goroutine holds the thread that started Mosquitto until the process ends.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hawser-io/hawser/internal/childproc.newSpawnThread.func1"))
}

// TestContract runs against a fake broker. A listener test runs the contract against the broker's listener.
func TestContract(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, s transport.Server) transporttest.Fixture {
		t.Helper()
		f := newFake(t, hawserBroker(s))
		return transporttest.Fixture{
			Dialer: newDialer(t, options(f)), Peer: transport.Peer{Role: "agent", Name: "cluster1"},
			GivesUpAlone: true, Cut: f.cut,
		}
	})
}
