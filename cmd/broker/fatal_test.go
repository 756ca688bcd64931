package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// TestMain_EndsWhenAWriteFails: the store cannot create its next log, as on a failed disk. The process ends by
// itself, with the reason.
func TestMain_EndsWhenAWriteFails(t *testing.T) {
	data := filepath.Join(t.TempDir(), "store")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "--insecure", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--data-dir="+data, "--log-format=json")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		last = lines.Text()
		var l struct{ Msg, Addr string }
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "grpc port is open" {
			failNextLog(t, data)
			requestBackup(t, l.Addr)
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("the process ended with %v", err)
	}
	if !strings.HasPrefix(last, "hawser-broker: broker: store: store: create "+data) || !strings.HasSuffix(last, ".log: directory not empty") {
		t.Errorf("its last log line is %q", last)
	}
}

// failNextLog creates a directory with the name of every log that the store may create next.
func failNextLog(t *testing.T, dir string) {
	t.Helper()
	for n := range 100 {
		log := filepath.Join(dir, fmt.Sprintf("%06d.log", n))
		if _, err := os.Stat(log); err == nil {
			continue // the store writes this log now
		}
		if err := os.MkdirAll(filepath.Join(log, "full"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// requestBackup makes the store begin a log, which fails.
func requestBackup(t *testing.T, addr string) {
	t.Helper()
	cc, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	s, err := hawserv1.NewAdminServiceClient(cc).Backup(t.Context(), &hawserv1.BackupRequest{})
	if err == nil {
		_, err = s.Recv()
	}
	if err == nil {
		t.Error("a store that failed is sent")
	}
	if err := cc.Close(); err != nil {
		t.Error(err)
	}
}
