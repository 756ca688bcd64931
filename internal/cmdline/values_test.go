package cmdline_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-io/hawser/internal/cmdline"
)

func TestDuration_IsWrittenWithItsUnit(t *testing.T) {
	var fromFile, fromFlag cmdline.Duration
	f := pflag.NewFlagSet("p", pflag.ContinueOnError)
	f.Var(&fromFlag, "wait", "how long")
	if err := json.Unmarshal([]byte(`"90s"`), &fromFile); err != nil {
		t.Fatal(err)
	}
	if err := f.Parse([]string{"--wait=90s"}); err != nil {
		t.Fatal(err)
	}
	if fromFile != cmdline.Duration(90*time.Second) || fromFlag != fromFile || fromFlag.String() != "1m30s" {
		t.Errorf("read %s and %s", &fromFile, &fromFlag)
	}
	for _, wrong := range []string{"90", `"90"`, `"soon"`, "true", "[]"} {
		if err := json.Unmarshal([]byte(wrong), &fromFile); err == nil || !strings.Contains(err.Error(), `"10s"`) {
			t.Errorf("%s: error %v does not show the right form", wrong, err)
		}
	}
	if err := f.Parse([]string{"--wait=90"}); err == nil || !strings.Contains(err.Error(), "--wait") || !strings.Contains(err.Error(), `"10s"`) {
		t.Errorf("flag without unit: error %v does not show the right form", err)
	}
}

func TestLoopback_IsThisMachineOnly(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.8.9.1": true, "::1": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "broker": false, "localhost.example.com": false,
	} {
		if got := cmdline.Loopback(host); got != want {
			t.Errorf("%q: got %t, want %t", host, got, want)
		}
	}
}
