package registration

import (
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	// maxUndecided is how many undecided CSRs there may be of a cluster, of each of its add-ons, and of
	// whoever else asks in its name. A klusterlet stops at ten of each.
	maxUndecided = 20
	// maxUndecidedAddOns is how many there may be of all add-ons of a cluster: it chooses their names.
	maxUndecidedAddOns = 100
	// decidedToo is how many times as many there may be on the hub, decided ones included, which it keeps for an hour.
	// A klusterlet stops at ten of these too.
	decidedToo = 2
	// inAll is how many times as much of what waits for a person there may be as of one account.
	inAll = 2
	// bytesEach is how large objects that wait for a person may be on average, as the hub has them. The
	// ManagedCluster of a klusterlet with a CA bundle of 2 KiB has half of it.
	bytesEach = 8 << 10
	// madeWithin is when what was made is counted as the informer shows it, if it shows it at all.
	madeWithin = time.Minute
)

// requester is by whom CSRs are counted: an agent of a cluster for the cluster itself or for an add-on,
// or whoever else asks for the cluster. Bootstrap tokens name any cluster; what they ask for must not
// take a cluster's renewals the room, nor must the add-ons of the cluster.
type requester struct {
	cluster string
	own     bool
	addOn   string // "" for the certificate of the cluster itself
	// addOns stands for all add-ons of the cluster, an account alone for all that it asks for in the names of
	// clusters, the zero asker for all accounts.
	addOns  bool
	account string
}

func requesterOf(cluster, user, addOn string) requester {
	if of := identityPrefix + cluster; user == of || strings.HasPrefix(user, of+":") {
		return requester{cluster: cluster, own: true, addOn: addOn}
	}
	return requester{cluster: cluster}
}

// counts are numbers of objects, and bytes of them.
type counts struct {
	// undecided are CSRs without a decision, csrs all of them, clusters ManagedClusters that the hub has
	// not accepted. bytes are those of undecided ones and of such clusters.
	undecided, csrs, clusters, bytes int
}

func (c counts) plus(d counts, n int) counts {
	return counts{c.undecided + n*d.undecided, c.csrs + n*d.csrs, c.clusters + n*d.clusters, c.bytes + n*d.bytes}
}

// undecided is what waits for a person, and what CSRs there are.
type undecided struct {
	by  map[requester]counts
	all int // undecided CSRs
	// made are objects that were asked for and that the informer does not show yet:
	//
	//	t1  a request is decided, and there is room for one
	//	t2  another one is decided, and there still is
	//	t3  the informer shows the object of the first
	made map[made]*object
}

// made names an object that is being made.
type made struct {
	dataType codec.DataType
	name     string
}

// add counts an object n more times, or fewer; o may be nil.
func (u *undecided) add(d codec.DataType, o *object, n int) {
	var c counts
	switch {
	case o == nil:
	case d == codec.SigningRequests && !o.undecided:
		c.csrs = 1
	case d == codec.SigningRequests:
		c = counts{undecided: 1, csrs: 1, bytes: o.bytes}
	case d == codec.ManagedClusters && !o.accepted():
		c = counts{clusters: 1, bytes: o.bytes}
	}
	if c == (counts{}) {
		return
	}
	if u.by == nil {
		u.by, u.made = map[requester]counts{}, map[made]*object{}
	}
	u.all += n * c.undecided
	of := []requester{o.requestedBy}
	switch {
	case !o.requestedBy.own:
		if of = append(of, requester{}); o.account != "" {
			of = append(of, requester{account: o.account})
		}
	case o.requestedBy.addOn != "":
		of = append(of, requester{cluster: o.requestedBy.cluster, own: true, addOns: true})
	}
	for _, k := range of {
		if u.by[k] = u.by[k].plus(c, n); u.by[k] == (counts{}) {
			delete(u.by, k)
		}
	}
}

// hold counts an object that the hub is asked for, until the informer shows it or release is called.
func (u *undecided) hold(k made, o *object, now time.Time) {
	u.release(k)
	o.CreationTimestamp.Time = now
	u.add(k.dataType, o, 1)
	u.made[k] = o
}

// expire forgets what the informer has not shown in time.
func (u *undecided) expire(now time.Time) {
	for k, o := range u.made {
		if now.Sub(o.CreationTimestamp.Time) > madeWithin {
			u.release(k)
		}
	}
}

// release counts an object no more that is shown, or that was not made.
func (u *undecided) release(k made) {
	u.add(k.dataType, u.made[k], -1)
	delete(u.made, k)
}

// csrCapacity is what there is already where one more of an ask would count: of such askers for the cluster itself,
// for the add-on that the ask names, for all add-ons of the cluster, of the account, and of all accounts.
type csrCapacity struct{ perRequester, addOn, addOns, account, all counts }

func (u *undecided) capacityOf(a agentRequest) csrCapacity {
	return csrCapacity{
		perRequester: u.by[requesterOf(a.cluster, a.user, "")],
		addOn:        u.by[requesterOf(a.cluster, a.user, a.sent.Metadata.Labels[addOnLabel])],
		addOns:       u.by[requester{cluster: a.cluster, own: true, addOns: true}], account: u.by[requester{account: a.user}], all: u.by[requester{}],
	}
}

// takes refuses one more object, of so many bytes, where there are too many.
func (r csrCapacity) takes(a agentRequest, forAddOn bool, bytes, maxPending int) error {
	const requests, decide = "certificate requests of %s are undecided", "approve, deny or delete some on the hub first"
	const kept, wait = "certificate requests of %s are on the hub", "it deletes decided ones after an hour: ask again then"
	cluster, account := "cluster "+a.cluster, "clusters that join with the token of "+a.user
	joins := a.what.DataType == codec.ManagedClusters || !requesterOf(a.cluster, a.user, "").own
	type bound struct {
		n, most          int
		what, of, advice string
	}
	var bounds []bound
	switch {
	case a.what.DataType == codec.ManagedClusters:
		const waiting, accept = "%s wait for being accepted", "accept or delete some on the hub first"
		bounds = []bound{{r.account.clusters, maxPending, waiting, account, accept}, {r.all.clusters, inAll * maxPending, waiting, "clusters", accept}}
	case forAddOn:
		addOn, all := fmt.Sprintf("add-on %s of %s", a.sent.Metadata.Labels[addOnLabel], cluster), "add-ons of "+cluster
		bounds = []bound{
			{r.addOn.undecided, maxUndecided, requests, addOn, decide}, {r.addOns.undecided, maxUndecidedAddOns, requests, all, decide},
			{r.addOn.csrs, decidedToo * maxUndecided, kept, addOn, wait}, {r.addOns.csrs, decidedToo * maxUndecidedAddOns, kept, all, wait},
		}
	default:
		bounds = []bound{{r.perRequester.undecided, maxUndecided, requests, cluster, decide}, {r.perRequester.csrs, decidedToo * maxUndecided, kept, cluster, wait}}
		if joins {
			bounds = append(bounds, bound{r.account.undecided, maxPending, requests, account, decide}, bound{r.all.undecided, inAll * maxPending, requests, "clusters that join", decide})
		}
	}
	if joins {
		const sum, first = "bytes of %s wait for a person", "accept or delete some on the hub first"
		bounds = append(bounds, bound{r.account.bytes + bytes - 1, bytesEach * maxPending, sum, account, first}, bound{r.all.bytes + bytes - 1, inAll * bytesEach * maxPending, sum, "clusters that join", first})
	}
	for _, b := range bounds {
		if b.n >= b.most {
			return apierrors.NewTooManyRequests(fmt.Sprintf("%d "+b.what+", at most %d may: %s", b.n, b.of, b.most, b.advice), 60)
		}
	}
	return nil
}
