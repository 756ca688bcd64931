package mqtt

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-io/hawser/pkg/transport"
	"github.com/hawser-io/hawser/pkg/transport/transporttest"
)

func TestMain(m *testing.M) {
	// It holds the thread that started a Mosquitto, for the life of the process.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hawser-io/hawser/internal/childproc.newSpawnThread.func1"))
}

// TestContract runs against a broker that is played here. The broker's own listener runs it too.
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
