package registration

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// maxUndecided is how many undecided CSRs there may be of a cluster, of each of its add-ons, and of
	// whoever else asks in its name. A klusterlet stops at ten of each.
	maxUndecided = 20
	// maxUndecidedAddOns is how many there may be of all add-ons of a cluster: it chooses their names.
	maxUndecidedAddOns = 100
)

// asker is by whom CSRs are counted: an agent of a cluster for the cluster itself or for an add-on,
// or whoever else asks for the cluster. Bootstrap tokens name any cluster; what they ask for must not
// take a cluster's renewals the room, nor must the add-ons of the cluster.
type asker struct {
	cluster string
	own     bool
	addOn   string // "" for the certificate of the cluster itself
}

func askerOf(cluster, user, addOn string) asker {
	if of := identityPrefix + cluster; user == of || strings.HasPrefix(user, of+":") {
		return asker{cluster, true, addOn}
	}
	return asker{cluster: cluster}
}

// undecided are the numbers of CSRs that nobody decided about.
type undecided struct {
	by map[asker]int
	// addOns are those of all add-ons, by cluster; others those that no agent of the cluster asked for.
	addOns      map[string]int
	others, all int
}

// add counts n more, or fewer.
func (u *undecided) add(of asker, n int) {
	if u.by == nil {
		u.by, u.addOns = map[asker]int{}, map[string]int{}
	}
	u.all += n
	addTo(u.by, of, n)
	switch {
	case !of.own:
		u.others += n
	case of.addOn != "":
		addTo(u.addOns, of.cluster, n)
	}
}

func addTo[K comparable](m map[K]int, k K, n int) {
	if m[k] += n; m[k] <= 0 {
		delete(m, k)
	}
}

// room is how many undecided CSRs there are where one more of an ask would count.
type room struct {
	// asker are those of such askers for the cluster itself, addOn those for the add-on that the ask
	// names, addOns for all of the cluster, others those that agents of no cluster asked for.
	asker, addOn, addOns, others int
}

func (u *undecided) roomOf(a ask) room {
	return room{
		asker:  u.by[askerOf(a.cluster, a.user, "")],
		addOn:  u.by[askerOf(a.cluster, a.user, a.sent.Metadata.Labels[addOnLabel])],
		addOns: u.addOns[a.cluster], others: u.others,
	}
}

// takes refuses one more CSR where too many are undecided.
func (r room) takes(a ask, forAddOn bool, maxWaiting int) error {
	n, of := r.asker, "cluster "+a.cluster
	if forAddOn {
		n, of = r.addOn, fmt.Sprintf("add-on %s of cluster %s", a.sent.Metadata.Labels[addOnLabel], a.cluster)
	}
	switch {
	case n >= maxUndecided:
	case forAddOn && r.addOns >= maxUndecidedAddOns:
		n, of = r.addOns, "add-ons of cluster "+a.cluster
	case !askerOf(a.cluster, a.user, "").own && r.others >= maxWaiting:
		n, of = r.others, "clusters that join"
	default:
		return nil
	}
	return apierrors.NewTooManyRequests(fmt.Sprintf("%d certificate requests of %s are undecided: somebody approves, denies or deletes some first", n, of), 60)
}
