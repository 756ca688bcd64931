// Package hubidentity stores on a managed cluster which hub identity belongs to which broker.
//
// The hash of a hub's identity is in the names of the AppliedManifestWorks of its works. An agent with that
// identity can change and delete their objects. So an identity is claimed once per cluster: a [Claim] names the
// broker, and [Claims] has all claims of a cluster. An identity comes from the flags of an agent or from the
// Claims, never from a broker. Data of a broker can only show that it is not the broker of the claim.
//
// [Claims.Decide] and [Claims.Identify] are pure. [Registry] reads and writes the Claims, and moves objects
// from one identity to another.
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

// BrokerRef describes the present connection of an agent to a broker.
type BrokerRef struct {
	// Cluster is the name of the cluster on the hub, Broker the dialed host:port.
	Cluster string `json:"cluster"`
	Broker  string `json:"broker"`
	// Roots are the hashes of the CA certificates that verified the broker; nil without TLS.
	Roots []string `json:"roots,omitempty"`
	// StoreID is the identity of the broker's store; "" if it sends none.
	StoreID string `json:"storeID,omitempty"`
}

// Claim binds an identity to a broker.
type Claim struct {
	Identity string    `json:"identity"`
	Since    time.Time `json:"since"`
	BrokerRef
	// Rejected has the latest rejected attempts: with this identity, or with another identity through the broker of
	// this claim.
	Rejected []Rejected `json:"rejected,omitempty"`
}

// Rejected is a rejected attempt. Identity is the identity that it used.
type Rejected struct {
	Identity string    `json:"identity"`
	Since    time.Time `json:"since"`
	BrokerRef
}

// maxRefused bounds Claim.Rejected: a new entry removes the oldest one.
const maxRefused = 8

// Claims has the claims of a cluster by the hash of their identity.
type Claims map[string]Claim

// RefusedError means that an agent may not use its identity through its broker.
type RefusedError struct {
	// Claim is the claim that conflicts.
	Claim Claim
	// By is the refused attempt.
	By Rejected
}

// Error names the owner of the identity and the next step.
func (e *RefusedError) Error() string {
	c, by := e.Claim, e.By
	if c.Identity != by.Identity {
		return fmt.Sprintf("hub identity %q is not used: the objects of broker %s for cluster %s were applied under identity %q, and would stay on the cluster for ever. "+
			"Start the agent with --hub-identity=%s, or hand the objects over with: hawser hub-identity transfer %s %s",
			by.Identity, by.Broker, by.Cluster, c.Identity, c.Identity, quote(c.Identity), quote(by.Identity))
	}
	why := "it has neither that address nor the same store"
	if !covers(c.Roots, by.Roots) {
		why = "its certificate was verified by another CA"
	}
	return fmt.Sprintf("hub identity %q belongs to broker %s on this cluster, and broker %s is not known to be the same: %s; nothing is applied or deleted. "+
		"For another hub, give its agent another --hub-identity. To hand the objects over to this broker, run: hawser hub-identity transfer %s %s",
		by.Identity, c.Broker, by.Broker, why, quote(by.Identity), quote(by.Identity))
}

func quote(identity string) string {
	if strings.ContainsAny(identity, " \t\"'$`\\&|;<>()*?[]#~") || identity == "" {
		return "'" + strings.ReplaceAll(identity, "'", `'\''`) + "'"
	}
	return identity
}

// covers reports whether a CA that verified the broker of the claim still verifies it. A claim without TLS is
// always covered.
func covers(claimed, now []string) bool {
	return len(claimed) == 0 || intersect(claimed, now)
}

func intersect(a, b []string) bool {
	return slices.ContainsFunc(a, func(x string) bool { return slices.Contains(b, x) })
}

// Decide decides whether an identity may be used through t. If so, err is nil and next has the updated claim.
// Otherwise err is a *RefusedError and next has the refusal. changed reports whether next differs. trusted are
// the hashes of all CAs that the owner of the cluster configured for the broker. During a replacement of the CA
// these are more than the one that verifies the broker.
//
// The rule: either the address or the store of a broker may change, but not both at once. The CA must stay,
// except in a replacement. Other common properties of two claimants prove nothing: any broker can have them.
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

// against returns the hash of another identity whose claim is about the broker of t. The objects of that broker
// for this cluster were applied under that identity. counts is false if there is none.
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

// admits applies the rule of Decide to a claimed identity.
func (c Claim) admits(t BrokerRef, trusted []string) bool {
	sameStore := t.StoreID != "" && c.StoreID == t.StoreID
	if covers(c.Roots, t.Roots) {
		return c.Broker == t.Broker || sameStore
	}
	// The CA is being replaced: the owner of the cluster trusts both.
	return len(t.Roots) > 0 && c.Broker == t.Broker && sameStore && intersect(c.Roots, trusted)
}

// follow returns the claim after t was admitted. Previous roots stay as long as the owner of the cluster trusts
// them.
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

// same compares two references, without the name of the cluster.
func (t BrokerRef) same(o BrokerRef) bool {
	a, b := slices.Sorted(slices.Values(t.Roots)), slices.Sorted(slices.Values(o.Roots))
	return t.Broker == o.Broker && t.StoreID == o.StoreID && slices.Equal(a, b)
}

// refuse records a refusal in a claim, and returns it as an error.
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

// AmbiguousError means that the identity of an agent without --hub-identity is ambiguous.
type AmbiguousError struct {
	// Broker is the address of the broker, Cluster the name of the cluster.
	Broker, Cluster string
	// Claims are those of this cluster. Unclaimed has the number of AppliedManifestWorks of each unclaimed hub, by
	// hash.
	Claims    []Claim
	Unclaimed map[string]int
}

// Error lists the candidates and the next step.
func (e *AmbiguousError) Error() string {
	var list []string
	for _, c := range e.Claims {
		list = append(list, fmt.Sprintf("identity %q through broker %s", c.Identity, c.Broker))
	}
	for _, h := range slices.Sorted(maps.Keys(e.Unclaimed)) {
		list = append(list, fmt.Sprintf("a hub whose identity has the hash %s, with %d AppliedManifestWorks", h, e.Unclaimed[h]))
	}
	return fmt.Sprintf("no --hub-identity is given, and the hub of broker %s on cluster %s is ambiguous: the cluster has %s; nothing is applied or deleted. "+
		"Start the agent with --hub-identity. To continue as the same hub, use its former --hub-identity, or the former broker address if none was set. For another hub use another name",
		e.Broker, e.Cluster, strings.Join(list, ", "))
}

// Identify returns the identity of an agent without --hub-identity, before it connects. It returns the first of
// these:
//   - the identity claimed through this address;
//   - the only identity claimed for this cluster, because the address may have changed;
//   - the address itself, as in releases without claims.
//
// Decide must still admit the broker. certain is false if only the store of the broker can confirm the
// identity. records has the number of AppliedManifestWorks of Hawser agents by hash. The error is an
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

// Unclaimed returns the records whose hash has no claim.
func (b Claims) Unclaimed(records map[string]int) map[string]int {
	unclaimed := maps.Clone(records)
	maps.DeleteFunc(unclaimed, func(h string, _ int) bool { _, claimed := b[h]; return claimed })
	return unclaimed
}
