package telemetry_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-io/hawser/internal/telemetry"
)

// TestLogger_LimitsAClient: lines about one client have less than 1 MB per minute, for any behaviour and names.
// Lines about other clients are still written, and left out lines are counted.
func TestLogger_LimitsAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log, err := telemetry.NewLogger(&out, "info", "json")
		if err != nil {
			t.Fatal(err)
		}
		id := strings.Repeat("i", 1_600_000)
		for range 60 {
			for range 100 {
				log.Warn("agent holds works that no record explains", "cluster", "evil", "first_ids", []string{id, id, id})
				log.With("peer", "agent/evil").Warn("connection ended", "error", errors.New(id))
				log.WithGroup("g").Info("it subscribes", "cluster", "evil", "uid", id)
			}
			<-time.After(time.Second)
		}
		if out.Len() > 1<<20 {
			t.Errorf("%d bytes in a minute", out.Len())
		}
		before := out.Len()
		log.Warn("agent holds works that no record explains", "cluster", "good")
		log.Warn("a line without a client", "id", id)
		log.Warn("agent holds works that no record explains", "cluster", "evil")
		for _, want := range []string{`"cluster":"good"`, "a line without a client", `"suppressed_before":`, "... (1600000 bytes)"} {
			if !strings.Contains(out.String()[before:], want) {
				t.Errorf("%s is not in:\n%s", want, out.String()[before:])
			}
		}
	})
}

// TestLogger_LimitsEachClientSeparately: memory is bounded for any number of clients, and a late client is not
// silenced by earlier ones.
func TestLogger_LimitsEachClientSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log, err := telemetry.NewLogger(&out, "info", "text")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100_000 {
			log.Info("it comes", "cluster", fmt.Sprint(i))
		}
		if lines := bytes.Count(out.Bytes(), []byte("\n")); lines < 4000 || lines > 4300 {
			t.Errorf("%d lines", lines)
		}
		<-time.After(2 * time.Minute)
		before := out.Len()
		log.Info("it comes", "cluster", "the last")
		if !strings.Contains(out.String()[before:], "the last") {
			t.Error("it is not logged")
		}
	})
}
