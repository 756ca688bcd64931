// Package codectest helps the tests of package codec and its subpackages to compare events with readable golden
// files.
package codectest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
	cloudeventsv1 "github.com/hawser-io/hawser/proto/io/cloudevents/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Golden compares the dump of protobuf bytes with testdata/name. With -update it writes the file.
func Golden(t *testing.T, name string, event []byte) {
	t.Helper()
	GoldenText(t, name, Dump(t, event))
}

// GoldenText compares a text with testdata/name. With -update it writes the file.
func GoldenText(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil { //nolint:gosec // a file of the source tree
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path) // a file of the source tree
	if err != nil {
		t.Fatalf("%v (write it with go test -update)", err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, d)
	}
}

// Dump returns an event as text: one line per field and attribute with its type, then the data unchanged. It
// uses only the protobuf library.
func Dump(t *testing.T, event []byte) string {
	t.Helper()
	var p cloudeventsv1.CloudEvent
	if err := proto.Unmarshal(event, &p); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "id           %s\nsource       %s\nspec_version %s\ntype         %s\n", p.GetId(), p.GetSource(), p.GetSpecVersion(), p.GetType())
	for _, key := range slices.Sorted(maps.Keys(p.GetAttributes())) {
		fmt.Fprintf(&b, "%s %s\n", key, describe(p.GetAttributes()[key]))
	}
	if p.GetData() == nil {
		b.WriteString("no data\n")
	} else {
		fmt.Fprintf(&b, "binary_data, %d bytes:\n%s\n", len(p.GetBinaryData()), payload(t, &p))
	}
	return b.String()
}

func describe(v *cloudeventsv1.CloudEvent_CloudEventAttributeValue) string {
	switch a := v.GetAttr().(type) {
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeString:
		return fmt.Sprintf("ce_string %q", a.CeString)
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeInteger:
		return fmt.Sprintf("ce_integer %d", a.CeInteger)
	case *cloudeventsv1.CloudEvent_CloudEventAttributeValue_CeTimestamp:
		return "ce_timestamp " + a.CeTimestamp.AsTime().Format(time.RFC3339Nano)
	}
	return fmt.Sprintf("%T", v.GetAttr())
}

// payload returns JSON unchanged, and the message of a sync event field by field.
func payload(t *testing.T, p *cloudeventsv1.CloudEvent) string {
	t.Helper()
	name, isSync := strings.CutPrefix(p.GetType(), "dev.hawser.sync.v1.")
	if !isSync {
		return string(p.GetBinaryData())
	}
	message := map[string]proto.Message{
		"checkpoint":        &hawserv1.Checkpoint{},
		"ack":               &hawserv1.Ack{},
		"keepalive":         &hawserv1.Keepalive{},
		"goodbye":           &hawserv1.Goodbye{},
		"inventory_request": &hawserv1.InventoryRequest{},
		"inventory":         &hawserv1.Inventory{},
		"sync_report":       &hawserv1.SyncReport{},

		"disconnected_clusters": &hawserv1.DisconnectedClusters{},
	}[name]
	if err := proto.Unmarshal(p.GetBinaryData(), message); err != nil {
		t.Fatal(err)
	}
	// prototext varies the number of spaces so that its output is not used as a stable format. Reduce them to one.
	return strings.TrimSpace(strings.ReplaceAll(prototext.Format(message), ":  ", ": "))
}
