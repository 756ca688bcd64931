package interop

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/hawser-io/hawser/pkg/codec"
	"github.com/hawser-io/hawser/pkg/transport"
)

// listOf is the request with which an agent says what it holds.
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

// refusal is what a broker said about an event that it did not take, the zero
// value when it took it.
func refusal(err error) transport.Error {
	var e *transport.Error
	if errors.As(err, &e) {
		return *e
	}
	return transport.Error{}
}
