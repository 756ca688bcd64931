package registration

import (
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/codec"
)

const (
	// maxUndecided limits the undecided CSRs of a cluster, of each of its add-ons, and of all other clients that
	// request in its name. A klusterlet stops at ten of each.
	maxUndecided = 20
	// maxUndecidedAddOns limits the undecided CSRs of all add-ons of a cluster, because the cluster chooses their
	// names.
	maxUndecidedAddOns = 100
	// decidedToo is the factor of the limit for all CSRs on the hub, decided ones included. The hub keeps those for
	// an hour. A klusterlet stops at ten of these too.
	decidedToo = 2
	// inAll is the factor of the limit for all accounts together, for objects that wait for an operator.
	inAll = 2
	// bytesEach limits the average size in bytes of objects that wait for an operator, as the hub has them. The
	// ManagedCluster of a klusterlet with a CA bundle of 2 KiB has half of it.
	bytesEach = 8 << 10
	// madeWithin is how long a created object is counted before the informer shows it.
	madeWithin = time.Minute
)

// requester is the key by which CSRs are counted. It is an agent of a cluster, for the cluster itself or for an
// add-on, or another client that requests for the cluster. A bootstrap token may name any cluster. Its requests
// must not use up the capacity for a cluster's renewals, nor may the add-ons of the cluster.
type requester struct {
	cluster string
	own     bool
	addOn   string // "" for the certificate of the cluster itself
	// addOns stands for all add-ons of the cluster. A requester with account alone stands for all requests of that
	// account for clusters. The zero requester stands for all accounts.
	addOns  bool
	account string
}

func requesterOf(cluster, user, addOn string) requester {
	if of := ocm.UserPrefix + cluster; user == of || strings.HasPrefix(user, of+":") {
		return requester{cluster: cluster, own: true, addOn: addOn}
	}
	return requester{cluster: cluster}
}

// counts are numbers of objects, and their bytes.
type counts struct {
	// undecided are CSRs without a decision, csrs all of them, clusters the ManagedClusters that are not accepted.
	// bytes is the size of undecided CSRs and of such clusters.
	undecided, csrs, clusters, bytes int
}

func (c counts) plus(d counts, n int) counts {
	return counts{c.undecided + n*d.undecided, c.csrs + n*d.csrs, c.clusters + n*d.clusters, c.bytes + n*d.bytes}
}

// undecided counts the objects that wait for an operator, and all CSRs.
type undecided struct {
	by  map[requester]counts
	all int // number of undecided CSRs
	// made are requested objects that the informer does not show yet.
	//
	// Scenario:
	//   t1: a request is decided, and there is capacity for one.
	//   t2: another one is decided, and there still is.
	//   t3: the informer shows the object of the first one.
	// Result: the object of t1 is counted at t2.
	made map[made]*object
}

// made identifies an object that is being created.
type made struct {
	dataType codec.DataType
	name     string
}

// add adds n to the counts of an object; o may be nil.
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

// hold counts an object before its creation, until the informer shows it or release is called.
func (u *undecided) hold(k made, o *object, now time.Time) {
	u.release(k)
	o.CreationTimestamp.Time = now
	u.add(k.dataType, o, 1)
	u.made[k] = o
}

// expire drops the objects that the informer has not shown in time.
func (u *undecided) expire(now time.Time) {
	for k, o := range u.made {
		if now.Sub(o.CreationTimestamp.Time) > madeWithin {
			u.release(k)
		}
	}
}

// release ends the count of an object that is shown, or that was not created.
func (u *undecided) release(k made) {
	u.add(k.dataType, u.made[k], -1)
	delete(u.made, k)
}

// csrCapacity holds the present counts that a request would increase. There are counts of the requester for the
// cluster itself, of the named add-on, and of all add-ons of the cluster. There are also those of the account
// and of all accounts.
type csrCapacity struct{ perRequester, addOn, addOns, account, all counts }

func (u *undecided) capacityOf(a agentRequest) csrCapacity {
	return csrCapacity{
		perRequester: u.by[requesterOf(a.cluster, a.user, "")],
		addOn:        u.by[requesterOf(a.cluster, a.user, a.sent.Metadata.Labels[ocm.AddOnLabel])],
		addOns:       u.by[requester{cluster: a.cluster, own: true, addOns: true}], account: u.by[requester{account: a.user}], all: u.by[requester{}],
	}
}

// takes refuses one more object of bytes bytes if a limit is reached.
func (r csrCapacity) takes(a agentRequest, forAddOn bool, bytes, maxPending int) error {
	const requests, decide = "certificate requests of %s are undecided", "approve, deny or delete some on the hub first"
	const kept, wait = "certificate requests of %s are on the hub", "the hub deletes decided ones after an hour: try again then"
	cluster, account := "cluster "+a.cluster, "clusters that join with the token of "+a.user
	joins := a.what.DataType == codec.ManagedClusters || !requesterOf(a.cluster, a.user, "").own
	type bound struct {
		n, most          int
		what, of, advice string
	}
	var bounds []bound
	switch {
	case a.what.DataType == codec.ManagedClusters:
		const waiting, accept = "%s wait to be accepted", "accept or delete some on the hub first"
		bounds = []bound{{r.account.clusters, maxPending, waiting, account, accept}, {r.all.clusters, inAll * maxPending, waiting, "clusters", accept}}
	case forAddOn:
		addOn, all := fmt.Sprintf("add-on %s of %s", a.sent.Metadata.Labels[ocm.AddOnLabel], cluster), "add-ons of "+cluster
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
		const sum, first = "bytes of %s wait for an operator", "accept or delete some on the hub first"
		bounds = append(bounds, bound{r.account.bytes + bytes - 1, bytesEach * maxPending, sum, account, first}, bound{r.all.bytes + bytes - 1, inAll * bytesEach * maxPending, sum, "clusters that join", first})
	}
	for _, b := range bounds {
		if b.n >= b.most {
			return apierrors.NewTooManyRequests(fmt.Sprintf("%d "+b.what+", at most %d may: %s", b.n, b.of, b.most, b.advice), 60)
		}
	}
	return nil
}
