package install

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// database returns settings with a database, whose Secret it puts into the hub.
func database(hub *plane) Settings {
	hub.Put(object("v1", "Namespace", "", namespace))
	hub.Put(secretOf("db", map[string][]byte{"url": []byte("postgres://hawser@db/hawser"), "password": []byte("x")}))
	s := wanted
	s.PostgresSecret = "db"
	return s
}

// brokers returns the installed Deployment of the brokers.
func (p *plane) brokers(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	o, err := get(t.Context(), p, object("apps/v1", "Deployment", namespace, brokerDeployment))
	if err != nil || o == nil {
		t.Fatal(o, err)
	}
	return o
}

func field(o *unstructured.Unstructured, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	return v
}

// scale sets the number of brokers, as kubectl scale does.
func (p *plane) scale(t *testing.T, replicas string) {
	t.Helper()
	ref, err := refOf(t.Context(), p, object("apps/v1", "Deployment", namespace, brokerDeployment))
	if err == nil {
		_, err = p.Patch(t.Context(), ref, []byte(`{"spec": {"replicas": `+replicas+`}}`), "")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// hinted returns an error with its hint.
func hinted(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return err.Error() + ": " + h.Hint()
	}
	return ""
}

// TestHub_BrokersShareADatabase: the brokers have no volume, and use the Secret. Later runs keep the number.
func TestHub_BrokersShareADatabase(t *testing.T) {
	hub := newPlane()
	s := database(hub)
	s.Registration = On
	hub.installHub(t, s, epoch)
	for _, c := range []struct {
		settings Settings
		replicas string
	}{{Settings{}, "3"}, {Settings{Replicas: 5}, "5"}, {Settings{}, "5"}} {
		hub.installHub(t, c.settings, epoch)
		o := hub.brokers(t)
		text, err := o.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		if n := fmt.Sprint(field(o, "spec", "replicas")); n != c.replicas {
			t.Errorf("%+v: %s brokers, want %s", c.settings, n, c.replicas)
		}
		for _, want := range []string{`"--store-engine=postgres"`, `"secretName":"db"`, `{"key":"url","name":"db"}`, `{"emptyDir":{},"name":"data"}`, `"maxSurge":1`} {
			if !strings.Contains(string(text), want) {
				t.Errorf("the Deployment lacks %s: %s", want, text)
			}
		}
		for _, wrong := range []string{"persistentVolumeClaim", "hawser-broker-postgres", "Recreate"} {
			if strings.Contains(string(text), wrong) {
				t.Errorf("the Deployment has %s: %s", wrong, text)
			}
		}
	}
	for ref := range hub.content() {
		if strings.HasPrefix(ref, "persistentvolumeclaims") {
			t.Errorf("%s was made", ref)
		}
	}
}

// TestHub_DatabaseRefusals: each error has the next step.
func TestHub_DatabaseRefusals(t *testing.T) {
	for want, change := range map[string]func(*plane, *Settings){
		"--replicas 3 needs --postgres-secret":               func(_ *plane, s *Settings) { s.PostgresSecret, s.Replicas = "", 3 },
		"--replicas -1":                                      func(_ *plane, s *Settings) { s.Replicas = -1 },
		"Secret hawser/other with the keys url and password": func(_ *plane, s *Settings) { s.PostgresSecret = "other" },
		"Secret hawser/part with the keys url and password": func(p *plane, s *Settings) {
			p.Put(secretOf("part", map[string][]byte{"url": []byte("x")}))
			s.PostgresSecret = "part"
		},
	} {
		hub := newPlane()
		s := database(hub)
		change(hub, &s)
		_, err := Hub(t.Context(), hub, s, epoch)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if strings.Contains(want, "keys") && !strings.Contains(hinted(err), "create secret generic "+s.PostgresSecret+" --from-literal=url=") {
			t.Errorf("%v has the hint %q", err, hinted(err))
		}
	}
}

// TestHub_NeverStartsWithAnotherStore: from the volume to the database and back, the brokers must be stopped first,
// so that their works can be copied. The volume stays.
func TestHub_NeverStartsWithAnotherStore(t *testing.T) {
	hub := newPlane()
	hub.installHub(t, wanted, epoch)
	for _, step := range []struct {
		settings Settings
		refusal  string
		replicas string
	}{
		{database(hub), "a broker runs with its works on a volume", "3"},
		{Settings{PostgresSecret: "none"}, "brokers run with their works in PostgreSQL", "1"},
	} {
		before := hub.content()
		_, err := Hub(t.Context(), hub, step.settings, epoch)
		if got := hinted(err); !strings.Contains(got, step.refusal) || !strings.Contains(got, "scale deployment hawser-broker --replicas=0") {
			t.Errorf("%+v: %q, want %q", step.settings, got, step.refusal)
		}
		if after := hub.content(); len(after) != len(before) {
			t.Errorf("the refusal changed the hub: %v", after)
		}
		hub.scale(t, "0")
		hub.installHub(t, step.settings, epoch)
		if n := fmt.Sprint(field(hub.brokers(t), "spec", "replicas")); n != step.replicas {
			t.Errorf("%+v: %s brokers, want %s", step.settings, n, step.replicas)
		}
		if !slices.ContainsFunc(hub.Refs(), func(r kubeclient.Ref) bool { return r.Resource == "persistentvolumeclaims" }) {
			t.Errorf("%+v deleted the volume", step.settings)
		}
	}
}

// TestInstalled_NeedsNoDatabase: an installation can be removed when its Secret is gone.
func TestInstalled_NeedsNoDatabase(t *testing.T) {
	hub := newPlane()
	hub.installHub(t, database(hub), epoch)
	hub.Put(secretOf("db", nil))
	if _, err := Installed(t.Context(), hub, epoch); err != nil {
		t.Error(err)
	}
}
