package main

import (
	"io"
	"testing"

	"github.com/hawser-io/hawser/internal/testkit/refdocs"
	"github.com/hawser-io/hawser/pkg/agent/workpolicy"
	"github.com/hawser-io/hawser/pkg/transport/mqtt"
)

// TestReference compares the page of this program in docs/reference with the program.
func TestReference(t *testing.T) {
	refdocs.Check(t, refdocs.Page{Root: "../..", Command: command(io.Discard, io.Discard), Files: []refdocs.File{
		{
			Title: "The file of `--workload-source-config`, over gRPC",
			About: "It has the form of Open Cluster Management's grpc driver file. Keys that mean nothing here are named in the log.",
			Into:  &driver{},
		},
		{
			Title: "The file of `--workload-source-config`, over MQTT",
			About: "It has the form of Open Cluster Management's mqtt driver file. hub-source takes the same one (`--transport-config`).",
			Into:  &mqtt.File{},
		},
		{
			Title: "The file of `--policy-file`",
			About: "What works of which hub may have on this cluster; `NAME` is a hub identity, or `*` for all hubs that are not named. See [operations](../operations/agent.md#what-works-may-contain).",
			Into:  &workpolicy.Policy{},
		},
	}})
}
