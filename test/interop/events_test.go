package interop

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// listOf returns the version list of an agent.
func listOf(t testing.TB, cluster string, versions ...codec.ResourceVersion) codec.Event {
	t.Helper()
	e, err := codec.NewSpecResyncRequest(codec.ResyncParams{
		ID: uuid.NewString(), Time: time.Now(), Source: "agent-of-the-test", Cluster: cluster, DataType: codec.ManifestBundles,
	}, versions)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// refusal returns the broker's error about an event, or the zero value if it accepted the event.
func refusal(err error) transport.Error {
	var e *transport.Error
	if errors.As(err, &e) {
		return *e
	}
	return transport.Error{}
}
