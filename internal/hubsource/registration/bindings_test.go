package registration

import (
	"context"
	"log/slog"
	"testing"
	"time"

	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

// tokenOf requests a token of an account of cluster1, and returns the reason of a refusal.
func (b *bench) tokenOf(account string) (refused string) {
	b.Helper()
	var a *hawserv1.RegistrationAnswer
	a, refused = b.request(parsed(b, createdToken, cluster1, obj{"metadata": obj{"namespace": cluster1, "name": account}}))
	if (refused == "") != (len(a.GetTokenRequest()) > 0) {
		b.Errorf("refused %q, token %s", refused, a.GetTokenRequest())
	}
	return refused
}

// Acceptance may end while no replica leads. The next leader then removes the binding.
func TestBindings_EndOfThoseDeniedMeanwhile(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		b.joined(cluster1)
		b.hub.put(hubClusters, "", "denied", obj{"spec": obj{"hubAcceptsClient": false}})
		for _, cluster := range []string{cluster1, "denied", "deleted"} {
			b.hub.put(hubBindings, cluster, tokensRole, obj{})
		}
		b.hub.put(hubBindings, "denied", "other", obj{})
	}, func(b *bench) {
		for cluster, stays := range map[string]bool{cluster1: true, "denied": false, "deleted": false} {
			if is := b.hub.get(hubBindings, cluster, tokensRole) != nil; is != stays {
				t.Errorf("%s: the right is there: %v, want %v", cluster, is, stays)
			}
		}
		if b.hub.get(hubBindings, "denied", "other") == nil {
			t.Error("what another binding gives went too")
		}
	})
}

// Another replica removes the binding while this one does not lead, and the cluster is accepted again.
func TestBindings_BoundAgain(t *testing.T) {
	inBubble(t, func(b *bench, _ *Config) {
		b.joined(cluster1)
		b.hub.put("serviceaccounts", cluster1, "a-agent", obj{"metadata": obj{"labels": obj{tokenLabel: "true"}}})
		b.hub.put("serviceaccounts", cluster1, "default", obj{})
	}, func(b *bench) {
		began := time.Now()
		if refused := b.tokenOf("default"); refused != "Forbidden" || time.Since(began) >= bindingAgain {
			t.Errorf("of an account without the label: %q after %s", refused, time.Since(began))
		}
		for range 2 {
			if refused := b.tokenOf("a-agent"); refused != "" {
				t.Errorf("refused: %s", refused)
			}
			b.hub.remove(hubBindings, cluster1, tokensRole)
		}
	})
}

// A cluster requests a token, acceptance is withdrawn, and then the binding is created. It is still removed.
func TestBindings_BoundTooLate(t *testing.T) {
	inBubble(t, nil, func(b *bench) {
		late := newBindings(b.server.cfg.Hub, slog.New(slog.DiscardHandler), func(string) bool { return false })
		if fresh, err := late.bind(b.Context(), cluster1); !fresh || err != nil {
			t.Fatal(fresh, err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		done, known := make(chan error, 1), make(chan struct{})
		go func() { done <- late.Run(ctx, known) }()
		b.wait(time.Minute)
		if b.hub.get(hubBindings, cluster1, tokensRole) == nil {
			t.Error("the binding was deleted before the accepted clusters were known")
		}
		close(known)
		b.wait(time.Second)
		if b.hub.get(hubBindings, cluster1, tokensRole) != nil {
			t.Error("the right stays")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
