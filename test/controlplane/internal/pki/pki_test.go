package pki

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// ensure returns the files of dir, and the content of the directory.
func ensure(t *testing.T, dir string) (Files, map[string]string) {
	t.Helper()
	f, err := Ensure(dir, now)
	if err != nil {
		t.Fatalf("Ensure: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	content := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		content[e.Name()] = string(data)
	}
	return f, content
}

func TestEnsure_KeepsCreatedFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	_, first := ensure(t, dir)
	if len(first) != 8 {
		t.Errorf("made %d files, want 8", len(first))
	}
	_, second := ensure(t, dir)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("a second call changed files (-first +second):\n%s", diff)
	}
}

func TestEnsure_CertificatesServeTheirPurpose(t *testing.T) {
	f, _ := ensure(t, filepath.Join(t.TempDir(), "pki"))
	server, err := loadPair(f.ServerCert, f.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "kubernetes.default.svc", "10.0.0.1"} {
		if err := server.VerifyHostname(host); err != nil {
			t.Errorf("serving certificate: %v", err)
		}
	}
	admin, err := loadPair(f.AdminCert, f.AdminKey)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"system:masters"}, admin.Subject.Organization); diff != "" {
		t.Errorf("groups of the administrator (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, admin.ExtKeyUsage); diff != "" {
		t.Errorf("usage of the administrator's certificate (-want +got):\n%s", diff)
	}
	for _, name := range []string{f.CAKey, f.ServerKey, f.AdminKey, f.TokenSigningKey} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %v, want 0600", filepath.Base(name), mode)
		}
	}
}

// TestEnsure_StartsOverAfterAKill: a process killed between the first file and the rename leaves a draft.
func TestEnsure_StartsOverAfterAKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if err := os.MkdirAll(dir+".new", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir+".new", "ca.key"), []byte("half a k"), 0o600); err != nil {
		t.Fatal(err)
	}
	ensure(t, dir)
	if _, err := os.Stat(dir + ".new"); !os.IsNotExist(err) {
		t.Errorf("the draft is still there: %v", err)
	}
}

func TestEnsure_RejectsUnusableFiles(t *testing.T) {
	other, _ := ensure(t, filepath.Join(t.TempDir(), "other"))
	copyOver := func(from, to string) error {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o600)
	}
	for name, tc := range map[string]struct {
		damage func(Files) error
		at     time.Time
		want   string
	}{
		"missing file":        {damage: func(f Files) error { return os.Remove(f.AdminKey) }, want: "admin.key"},
		"damaged certificate": {damage: func(f Files) error { return os.WriteFile(f.CACert, []byte("?"), 0o600) }, want: "ca.crt"},
		"damaged token key":   {damage: func(f Files) error { return os.WriteFile(f.TokenSigningKey, nil, 0o600) }, want: "service-account.key"},
		"foreign token key":   {damage: func(f Files) error { return copyOver(other.TokenVerifyKeys, f.TokenVerifyKeys) }, want: "service-account.pub is not"},
		"foreign authority": {
			damage: func(f Files) error {
				if err := copyOver(other.CAKey, f.CAKey); err != nil {
					return err
				}
				return copyOver(other.CACert, f.CACert)
			},
			want: "server.crt",
		},
		"expired": {damage: func(Files) error { return nil }, at: now.Add(lifetime + time.Hour), want: "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "pki")
			f, _ := ensure(t, dir)
			if err := tc.damage(f); err != nil {
				t.Fatal(err)
			}
			at := now
			if !tc.at.IsZero() {
				at = tc.at
			}
			_, err := Ensure(dir, at)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "delete the state directory") {
				t.Errorf("Ensure = %v, want an error with %q and what to do", err, tc.want)
			}
		})
	}
}
