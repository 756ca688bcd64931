package codec

import (
	"errors"
	"testing"
	"time"
)

func TestNewRelease_CarriesSourceAndCluster(t *testing.T) {
	e, err := NewRelease("1", time.Unix(7, 0), "hub", "cluster1")
	if err != nil {
		t.Fatal(err)
	}
	b, err := Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	env, err := ParseEnvelope(b)
	if err != nil {
		t.Fatal(err)
	}
	if env.RawType != TypeRelease || env.Source != "hub" || env.Cluster != "cluster1" || len(env.Data) != 0 {
		t.Errorf("envelope is %+v", env)
	}
}

func TestNewRelease_RefusesToReleaseEverything(t *testing.T) {
	for _, c := range []struct{ source, cluster string }{{"", "cluster1"}, {"hub", ""}} {
		_, err := NewRelease("1", time.Unix(7, 0), c.source, c.cluster)
		var a *AttributeError
		if !errors.As(err, &a) {
			t.Errorf("NewRelease(%q, %q) returned %v, want an *AttributeError", c.source, c.cluster, err)
		}
	}
}
