package pki_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/internal/pki"
)

func TestDir_InitAndIssue(t *testing.T) {
	d := pki.Dir(filepath.Join(t.TempDir(), "certs"))
	valid := pki.Starting(epoch, time.Hour)
	if _, err := d.Init("test", valid, false); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Issue(pki.Request{Role: pki.Agent, Name: "cluster1", Valid: valid}, false); err != nil {
		t.Fatal(err)
	}
	got := map[string]fs.FileMode{}
	entries, err := os.ReadDir(string(d))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = info.Mode()
	}
	want := map[string]fs.FileMode{"ca.crt": 0o644, "ca.key": 0o600, "agent-cluster1.crt": 0o644, "agent-cluster1.key": 0o600}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestDir_NeverOverwritesUnasked(t *testing.T) {
	d := pki.Dir(t.TempDir())
	valid := pki.Starting(epoch, time.Hour)
	if _, err := d.Init("test", valid, false); err != nil {
		t.Fatal(err)
	}
	req := pki.Request{Role: pki.Source, Name: "hub1", Valid: valid}
	if _, err := d.Issue(req, false); err != nil {
		t.Fatal(err)
	}
	caKey, leafKey := read(t, d.CAKey()), read(t, d.Key(pki.Source, "hub1"))

	if _, err := d.Init("test", valid, false); !errors.Is(err, pki.ErrExists) {
		t.Errorf("second Init: %v, want ErrExists", err)
	}
	if _, err := d.Issue(req, false); !errors.Is(err, pki.ErrExists) {
		t.Errorf("second Issue: %v, want ErrExists", err)
	}
	if !bytes.Equal(caKey, read(t, d.CAKey())) || !bytes.Equal(leafKey, read(t, d.Key(pki.Source, "hub1"))) {
		t.Error("a refused call changed a key")
	}
	if _, err := d.Issue(req, true); err != nil {
		t.Errorf("Issue with overwrite: %v", err)
	}
	if bytes.Equal(leafKey, read(t, d.Key(pki.Source, "hub1"))) {
		t.Error("Issue with overwrite kept the old key")
	}
	if _, err := d.Init("test", valid, true); err != nil {
		t.Errorf("Init with overwrite: %v", err)
	}
	if bytes.Equal(caKey, read(t, d.CAKey())) {
		t.Error("Init with overwrite kept the old key")
	}
}

func TestDir_IssueWithoutAuthority(t *testing.T) {
	d := pki.Dir(t.TempDir())
	req := pki.Request{Role: pki.Source, Name: "hub1", Valid: pki.Starting(epoch, time.Hour)}
	if _, err := d.Issue(req, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Issue without an authority: %v, want ErrNotExist", err)
	}
	if err := os.WriteFile(d.CACert(), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.CAKey(), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Issue(req, false); !errors.Is(err, pki.ErrUnusableAuthority) {
		t.Errorf("Issue with a damaged authority: %v, want ErrUnusableAuthority", err)
	}
}

func TestDir_WriteFailureLeavesNothingBehind(t *testing.T) {
	d := pki.Dir(t.TempDir())
	valid := pki.Starting(epoch, time.Hour)
	if _, err := d.Init("test", valid, false); err != nil {
		t.Fatal(err)
	}
	// A file cannot replace a directory of that name.
	if err := os.Mkdir(d.Key(pki.Source, "hub1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Issue(pki.Request{Role: pki.Source, Name: "hub1", Valid: valid}, true); err == nil {
		t.Fatal("Issue replaced a directory")
	}
	left, err := filepath.Glob(filepath.Join(string(d), ".*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("temporary files left behind: %v", left)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
