// Package hubidentity keeps on a managed cluster which hub is which.
//
// A hub has an identity, whose hash is in the names of the AppliedManifestWorks
// of its works. Whoever acts under an identity can change and delete what these
// own. So an identity is claimed once per cluster: a [Claim] says through which
// broker, and [Claims] is where the claims of a cluster stand. An identity comes
// from the flags of an agent and from the Book, never from a broker. What a
// broker says can only show that it is not the one of the claim.
//
// [Claims.Decide] and [Claims.Identify] are pure; [Registry] reads and writes the
// Book, and moves objects from one identity to another.
package hubidentity

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hawser-io/hawser/pkg/agent/appliedwork"
)

// BrokerRef is the way from an agent to a broker, as it is now.
type BrokerRef struct {
	// Cluster is the name of the cluster on the hub, Broker the host:port that was
	// dialled.
	Cluster string `json:"cluster"`
	Broker  string `json:"broker"`
	// Roots are the hashes of the certificates by which that of the broker was
	// verified; nil without TLS.
	Roots []string `json:"roots,omitempty"`
	// StoreID is the identity of the broker's store; "" if it says none.
	StoreID string `json:"storeID,omitempty"`
}

// Claim says to which broker an identity belongs.
type Claim struct {
	Identity string    `json:"identity"`
	Since    time.Time `json:"since"`
	BrokerRef
	// Rejected are the latest that came and were not let in: under this identity, or
	// under another one through the broker of this claim.
	Rejected []Rejected `json:"rejected,omitempty"`
}

// Rejected is one that was not let in. Identity is what it wanted to be.
type Rejected struct {
	Identity string    `json:"identity"`
	Since    time.Time `json:"since"`
	BrokerRef
}

// maxRefused bounds Claim.Rejected: who asks more often pushes out the oldest.
const maxRefused = 8

// Claims has the claims of a cluster by the hash of their identity.
type Claims map[string]Claim

// RefusedError says that an agent may not act under its identity through the
// broker that it has come to.
type RefusedError struct {
	// Claim is the one that stands against it.
	Claim Claim
	// By is who was refused.
	By Rejected
}

// Error says who has what, and what to do.
func (e *RefusedError) Error() string {
	c, by := e.Claim, e.By
	if c.Identity != by.Identity {
		return fmt.Sprintf("hub identity %q is not used: what broker %s has for cluster %s was applied under identity %q, and would stay on the cluster for ever; "+
			"start the agent with --hub-identity=%s, or hand the objects over with: hawser hub-identity transfer %s %s",
			by.Identity, by.Broker, by.Cluster, c.Identity, c.Identity, quote(c.Identity), quote(by.Identity))
	}
	why := "it is neither at that address nor has it the same store"
	if !covers(c.Roots, by.Roots) {
		why = "its certificate was verified by another CA"
	}
	return fmt.Sprintf("hub identity %q belongs to broker %s on this cluster, and broker %s is not known to be the same: %s; nothing is applied or deleted. "+
		"If it is another hub, give its agent another --hub-identity; if it is to have the objects, hand them over with: hawser hub-identity transfer %s %s",
		by.Identity, c.Broker, by.Broker, why, quote(by.Identity), quote(by.Identity))
}

func quote(identity string) string {
	if strings.ContainsAny(identity, " \t\"'$`\\&|;<>()*?[]#~") || identity == "" {
		return "'" + strings.ReplaceAll(identity, "'", `'\''`) + "'"
	}
	return identity
}

// covers reports whether what verified a broker once verifies it now. Where
// there was no TLS, nothing was certain anyway.
func covers(claimed, now []string) bool {
	return len(claimed) == 0 || intersect(claimed, now)
}

func intersect(a, b []string) bool {
	return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
}

// Decide says whether an identity may be used through t. If so, the error is nil
// and next is the Book with that written down; otherwise the error is a
// *RefusedError, and next has that it was refused. changed says whether next
// differs. trusted are the hashes of all CAs that the owner of the cluster gave
// for the broker, which may be more than the one that it is verified by: that is
// how a CA is replaced.
//
// The rule: the address and the store of a broker may each become another one,
// but not both at once, and never behind the back of the CA. What two claimants
// have in common besides is no proof: everybody can have everything else.
func (b Claims) Decide(identity string, t BrokerRef, trusted []string, now time.Time) (next Claims, changed bool, err error) {
	hash := appliedwork.HubHash(identity)
	old, claimed := b[hash]
	against, stands := b.against(hash, old, t)
	switch {
	case stands:
		return b.refuse(against, identity, t, now)
	case !claimed:
		return b.with(hash, Claim{Identity: identity, Since: now, BrokerRef: t}), true, nil
	case !old.admits(t, trusted):
		return b.refuse(hash, identity, t, now)
	}
	next = b
	if after := old.follow(t, trusted); !after.equal(old) {
		next, changed = b.with(hash, after), true
	}
	return next, changed, nil
}

// against returns the claim of another identity that the broker of t belongs to.
// What it has for this cluster was applied under that identity.
func (b Claims) against(hash string, own Claim, t BrokerRef) (other string, counts bool) {
	for _, h := range slices.Sorted(maps.Keys(b)) {
		c := b[h]
		if h == hash || c.Cluster != t.Cluster {
			continue
		}
		sameStore := t.StoreID != "" && c.StoreID == t.StoreID && own.StoreID != t.StoreID
		if sameStore || own.Identity == "" && c.Broker == t.Broker {
			return h, true
		}
	}
	return "", false
}

// admits is the rule of Decide for an identity that is claimed.
func (c Claim) admits(t BrokerRef, trusted []string) bool {
	sameStore := t.StoreID != "" && c.StoreID == t.StoreID
	if covers(c.Roots, t.Roots) {
		return c.Broker == t.Broker || sameStore
	}
	// The CA is being replaced: the owner of the cluster trusts both.
	return len(t.Roots) > 0 && c.Broker == t.Broker && sameStore && intersect(c.Roots, trusted)
}

// follow returns the claim as it is once t was admitted. What verified the
// broker before counts on for as long as the owner trusts it.
func (c Claim) follow(t BrokerRef, trusted []string) Claim {
	before := c.Roots
	c.Cluster, c.Broker, c.Roots = t.Cluster, t.Broker, slices.Clone(t.Roots)
	for _, r := range before {
		if slices.Contains(trusted, r) && !slices.Contains(c.Roots, r) {
			c.Roots = append(c.Roots, r)
		}
	}
	slices.Sort(c.Roots)
	c.StoreID = cmp.Or(t.StoreID, c.StoreID)
	c.Rejected = slices.DeleteFunc(slices.Clone(c.Rejected), func(r Rejected) bool { return r.Identity == c.Identity && r.same(t) })
	return c
}

func (c Claim) equal(o Claim) bool {
	return c.Identity == o.Identity && c.Cluster == o.Cluster && c.same(o.BrokerRef) && len(c.Rejected) == len(o.Rejected)
}

// same compares ways to a broker, the name of the cluster aside.
func (t BrokerRef) same(o BrokerRef) bool {
	a, b := slices.Sorted(slices.Values(t.Roots)), slices.Sorted(slices.Values(o.Roots))
	return t.Broker == o.Broker && t.StoreID == o.StoreID && slices.Equal(a, b)
}

// refuse notes with a claim who was refused.
func (b Claims) refuse(hash, identity string, t BrokerRef, now time.Time) (next Claims, changed bool, err error) {
	c := b[hash]
	by := Rejected{Identity: identity, Since: now, BrokerRef: t}
	for _, r := range c.Rejected {
		if r.Identity == identity && r.Cluster == t.Cluster && r.same(t) {
			return b, false, &RefusedError{Claim: c, By: r}
		}
	}
	c.Rejected = append(slices.Clone(c.Rejected), by)
	if n := len(c.Rejected) - maxRefused; n > 0 {
		c.Rejected = c.Rejected[n:]
	}
	return b.with(hash, c), true, &RefusedError{Claim: c, By: by}
}

func (b Claims) with(hash string, c Claim) Claims {
	next := maps.Clone(b)
	if next == nil {
		next = Claims{}
	}
	next[hash] = c
	return next
}

// AmbiguousError says that it cannot be known under which identity an agent
// acts that was given none.
type AmbiguousError struct {
	// Broker is the address of the broker, Cluster the name of the cluster.
	Broker, Cluster string
	// Claims are those of this cluster, Strays the hubs that are not written down
	// and have AppliedManifestWorks, by hash, with how many.
	Claims    []Claim
	Unclaimed map[string]int
}

// Error lists what there is, and says what to do.
func (e *AmbiguousError) Error() string {
	var list []string
	for _, c := range e.Claims {
		list = append(list, fmt.Sprintf("identity %q through broker %s", c.Identity, c.Broker))
	}
	for _, h := range slices.Sorted(maps.Keys(e.Unclaimed)) {
		list = append(list, fmt.Sprintf("a hub whose identity has the hash %s, with %d AppliedManifestWorks", h, e.Unclaimed[h]))
	}
	return fmt.Sprintf("no --hub-identity is given, and which hub broker %s is to be on cluster %s is not certain: the cluster has %s; nothing is applied or deleted. "+
		"Start the agent with --hub-identity: the former address of the broker, where nothing else was set, to go on as that hub, or another name to be another one",
		e.Broker, e.Cluster, strings.Join(list, ", "))
}

// Identify returns the identity of an agent that was given none, before it has
// a connection: the one that was claimed through this address; else the only one
// that was claimed for this cluster, for the address may have changed; else the
// address itself, as it was when nothing was written down. Whether the broker
// may use it is still to be decided. certain is false where only the store of the
// broker can show that it is the right one. records says how many
// AppliedManifestWorks of Hawser's agents each hash has. The error is an
// *AmbiguousError.
func (b Claims) Identify(cluster, broker string, records map[string]int) (identity string, certain bool, err error) {
	var claims []Claim
	for _, h := range slices.Sorted(maps.Keys(b)) {
		switch c := b[h]; {
		case c.Cluster != cluster:
		case c.Broker == broker:
			return c.Identity, true, nil
		default:
			claims = append(claims, c)
		}
	}
	own := appliedwork.HubHash(broker)
	if _, claimed := b[own]; !claimed && records[own] > 0 {
		return broker, true, nil
	}
	switch len(claims) {
	case 0:
		unclaimed := b.Unclaimed(records)
		delete(unclaimed, own)
		if len(unclaimed) == 0 {
			return broker, true, nil
		}
		return "", false, &AmbiguousError{Broker: broker, Cluster: cluster, Unclaimed: unclaimed}
	case 1:
		return claims[0].Identity, false, nil
	}
	return "", false, &AmbiguousError{Broker: broker, Cluster: cluster, Claims: claims}
}

// Unclaimed returns of records those whose hash nobody has claimed.
func (b Claims) Unclaimed(records map[string]int) map[string]int {
	unclaimed := maps.Clone(records)
	maps.DeleteFunc(unclaimed, func(h string, _ int) bool { _, claimed := b[h]; return claimed })
	return unclaimed
}
