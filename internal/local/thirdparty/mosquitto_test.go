package thirdparty

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/internal/pki"
)

const mosquittoRoot = "../../.."

func program(t *testing.T) string {
	t.Helper()
	p, err := FetchMosquitto(t.Context(), mosquittoRoot, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func stop(t *testing.T, p *childproc.Process) {
	t.Helper()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// TestStart_FreePort_AndAgain: Mosquitto starts at a free port, and after a kill again at the same address.
func TestStart_FreePort_AndAgain(t *testing.T) {
	c := Config{Program: program(t), Dir: t.TempDir(), Text: "allow_anonymous true\n"}
	p, addr, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	accepted(t, addr)
	p.Kill()
	c.Addr = addr
	p, again, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, p)
	if again != addr {
		t.Errorf("started again at %s, want %s", again, addr)
	}
	accepted(t, addr)
}

// accepted connects as MQTT 5 client x.
func accepted(t *testing.T, addr string) {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // it was read to the end of the answer
	connect := []byte{0x10, 14, 0, 4, 'M', 'Q', 'T', 'T', 5, 2, 0, 60, 0, 0, 1, 'x'}
	if _, err := conn.Write(connect); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4)
	if _, err := conn.Read(answer); err != nil || answer[0] != 0x20 || answer[3] != 0 {
		t.Errorf("answer % x, %v; want a CONNACK that accepts", answer, err)
	}
}

func TestStart_BadConfiguration_ErrorHasTheReason(t *testing.T) {
	_, _, err := Start(t.Context(), Config{Program: program(t), Dir: t.TempDir(), Text: "no_such_option 1\n"})
	if err == nil || !strings.Contains(err.Error(), "Unknown configuration variable") {
		t.Errorf("got %v", err)
	}
}

func TestStart_AddressInUse_IsAnError(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, _, err = Start(t.Context(), Config{Program: program(t), Dir: t.TempDir(), Addr: l.Addr().String(), Text: "allow_anonymous true\n"})
	if err == nil || !strings.Contains(err.Error(), "Address already in use") {
		t.Errorf("got %v", err)
	}
}

// TestDeployed_Starts: Mosquitto accepts the configuration in deploy/mosquitto unchanged.
func TestDeployed_Starts(t *testing.T) {
	dir := t.TempDir()
	keys := pki.Dir(filepath.Join(dir, "pki"))
	if _, err := keys.Init("test", pki.Starting(time.Now(), time.Hour), false); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Issue(pki.Request{Role: pki.Broker, Name: "m", Hosts: []string{"127.0.0.1"}, Valid: pki.Starting(time.Now(), time.Hour)}, false); err != nil {
		t.Fatal(err)
	}
	acl := filepath.Join(dir, "acl")
	if err := os.WriteFile(acl, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := Deployed(mosquittoRoot, dir, Files{CA: keys.CACert(), Cert: keys.Cert(pki.Broker, "m"), Key: keys.Key(pki.Broker, "m"), ACL: acl})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "/mosquitto/") {
		t.Errorf("a path was left:\n%s", text)
	}
	p, _, err := Start(t.Context(), Config{Program: program(t), Dir: dir, Text: text})
	if err != nil {
		t.Fatal(err)
	}
	stop(t, p)
}
