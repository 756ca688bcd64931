package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient/clustertest"
)

func webhookFails(name string) error {
	return apierrors.NewInternalError(fmt.Errorf(`failed calling webhook %q: failed to call webhook: Post "https://10.0.0.1:443/": dial tcp 10.0.0.1:443: connect: connection refused`, name))
}

func TestCausesOf(t *testing.T) {
	conversion := func(name string) error {
		return apierrors.NewInternalError(fmt.Errorf(`conversion webhook for example.com/v1, Kind=Rope failed: Post "https://%s:443/"`, name))
	}
	for name, c := range map[string]struct {
		err  error
		want []string
	}{
		"nothing":                {nil, nil},
		"a webhook":              {fmt.Errorf("apply a: %w", webhookFails("x")), []string{"webhook x"}},
		"two webhooks, and more": {errors.Join(fmt.Errorf("apply a: %w", webhookFails("y")), errors.Join(webhookFails("x"), webhookFails("x"))), []string{"webhook x", "webhook y"}},
		"another internal error": {conversion("a"), []string{"500 InternalError Internal error occurred: conversion webhook for example.com/v, Kind=Rope failed: Post "}},
		"a time-out":             {apierrors.NewTimeoutError("etcdserver: request timed out", 0), []string{"504 Timeout Timeout: etcdserver: request timed out"}},
		"no connection":          {fmt.Errorf("get: %w", &timeout{}), []string{"the cluster does not answer"}},
		"a conflict":             {apierrors.NewConflict(configMaps, "a", errors.New("x")), nil},
		"one of its own besides": {errors.Join(webhookFails("x"), errors.New("y")), nil},
	} {
		if got, _ := causesOf(c.err); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if d := cmp.Diff(first(causesOf(conversion("a"))), first(causesOf(conversion("b")))); d != "" {
		t.Error(d)
	}
}

func first(why []string, _ bool) []string { return why }

// timeout is an error of the network.
type timeout struct{}

func (*timeout) Error() string   { return "i/o timeout" }
func (*timeout) Timeout() bool   { return true }
func (*timeout) Temporary() bool { return true }

// TestCauses_OneTries: of many keys that fail for one cause only one is due at a time, after increasing waits,
// in rotation.
func TestCauses_OneTries(t *testing.T) {
	c := newCauses()
	why := []string{"webhook x"}
	next := ""
	for i := range 5 {
		for key := range c.failed(fmt.Sprint("w", i), why) {
			next = key
		}
	}
	tried := map[string]int{}
	var waits []time.Duration
	for range 20 {
		tried[next]++
		d := c.failed(next, why)
		if len(d) != 1 {
			t.Fatalf("due are %v", d)
		}
		for key, wait := range d {
			next = key
			waits = append(waits, wait)
		}
	}
	if !slices.IsSorted(waits) || waits[len(waits)-1] != lastProbe {
		t.Errorf("waits are %v", waits)
	}
	if least := slices.Min(slices.Collect(maps.Values(tried))); len(tried) != 5 || least < 3 {
		t.Errorf("tries are %v", tried)
	}
}

// TestCauses_SuccessLetsGo: each success releases two more keys. A released key that fails waits again. There
// is always a probe while a key fails.
func TestCauses_SuccessLetsGo(t *testing.T) {
	c := newCauses()
	why := []string{"webhook x"}
	for i := range 6 {
		c.failed(fmt.Sprint("w", i), why)
	}
	if d := c.ended("w0", true); len(d) != 2 || d["w1"] != 0 || d["w2"] != 0 {
		t.Fatalf("due are %v", d)
	}
	if d := c.failed("w1", why); len(d) != 1 { // one key is due: the cause has not ended for all
		t.Fatalf("due are %v", d)
	}
	if d := c.ended("w2", false); len(d) > 1 { // the work of the key is deleted
		t.Fatalf("due are %v", d)
	}
	done := map[string]bool{}
	queue := []string{c.groups["webhook x"].probe}
	for len(queue) > 0 {
		key := queue[0]
		queue = append(queue[1:], slices.Collect(maps.Keys(c.ended(key, true)))...)
		done[key] = true
	}
	if len(done) != 4 || len(c.groups) != 0 || len(c.of) != 0 {
		t.Errorf("done %v, left %v and %v", done, c.groups, c.of)
	}
}

// TestCauses_TheProbeGoes: if the probe is deleted, or fails for another cause, another key becomes the probe.
func TestCauses_TheProbeGoes(t *testing.T) {
	for name, end := range map[string]func(c *causes, key string) due{
		"it is deleted":    func(c *causes, key string) due { return c.ended(key, false) },
		"for its own":      func(c *causes, key string) due { return c.ended(key, false) },
		"for another one":  func(c *causes, key string) due { return c.failed(key, []string{"webhook y"}) },
		"for two of these": func(c *causes, key string) due { return c.failed(key, []string{"webhook x", "webhook y"}) },
	} {
		c := newCauses()
		for i := range 3 {
			c.failed(fmt.Sprint("w", i), []string{"webhook x"})
		}
		if d := end(c, c.groups["webhook x"].probe); len(d) == 0 || len(d) > 3 {
			t.Errorf("%s: due are %v", name, d)
		}
	}
}

// TestCore_WorksBehindARepairedWebhook: 500 works fail for 190 s because a webhook does not answer. Meanwhile
// one of them retries at intervals. All are applied soon after the repair.
func TestCore_WorksBehindARepairedWebhook(t *testing.T) {
	const works = 500
	r := newRig(t)
	fails := true
	tries := 0
	r.f.Refuse = func(c clustertest.Call) error {
		if c.Verb == "create" && c.Ref.Resource == "configmaps" && fails {
			tries++
			return webhookFails("x")
		}
		return nil
	}
	for i := range works {
		r.deliver(hubWork(fmt.Sprint("w-", i), fmt.Sprint("web-", i), 1, configMap(fmt.Sprint("a-", i), "1")))
	}
	r.settle(time.Second)
	first := tries
	for range 189 { // a settle takes a bounded number of steps
		r.settle(time.Second)
	}
	if n := tries - first; first > 2*works || n > 40 {
		t.Errorf("%d tries in the first second, then %d in %v", first, n, 189*time.Second)
	}
	fails = false
	left := func() (n int) {
		for i := range works {
			if r.configMap(fmt.Sprint("a-", i)) == nil {
				n++
			}
		}
		return n
	}
	begun := r.now
	for left() > 0 && r.now.Sub(begun) < time.Hour {
		r.settle(100 * time.Millisecond)
	}
	if took := r.now.Sub(begun); took > lastProbe+2*time.Second {
		t.Errorf("all are applied %v after the repair", took)
	}
	if n := len(r.core.causes.of) + len(r.core.causes.groups); n > 0 {
		t.Errorf("%d keys and causes are kept", n)
	}
	r.settle(time.Second)
	r.expectStatus("w-0", workApplied, workAvailable)
}
