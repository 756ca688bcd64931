package core

import (
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Keepalive is an agent's keepalive with the digest of its works of this source, or the last will that the
// broker sends for it.
type Keepalive struct {
	Cluster string
	Digest  codec.Digest
	Goodbye bool
	Stamp   sessionfence.Stamp
}

// KeepaliveOf reads a keepalive event. The error is a *codec.AttributeError.
func KeepaliveOf(e codec.Event) (a *Keepalive, err error) {
	a = &Keepalive{}
	if a.Cluster, _, err = codec.StringExtension(e, codec.ExtClusterName); err != nil {
		return nil, err
	}
	if a.Stamp, err = sessionfence.StampOf(e); err != nil {
		return nil, err
	}
	a.Digest, a.Goodbye, err = codec.ParseKeepalive(e)
	return a, err
}

// digestReport is the digest that an agent reports of its works.
type digestReport struct {
	// reported is the digest until it is compared, then nil. mismatch is the last digest that differed from the
	// expected one.
	reported *codec.Digest
	mismatch digestMismatch
}

// digestMismatch is an unexpected digest of an agent, and how often in a row the agent has reported it.
type digestMismatch struct {
	digest codec.Digest
	times  int
}

// keepalive stores the digest of a keepalive for nextSum. Events in flight cause a mismatch too, so only the
// same mismatch twice in a row has an effect.
func (p *agentResponder) keepalive(a *Keepalive) {
	cl := p.f.clusters[a.Cluster]
	if cl == nil || !p.f.stateless || !p.f.mayReport(cl) || cl.agent.list != nil {
		return
	}
	cl.agent.digests.reported = &a.Digest
	cl.agent.tagAll(cl)
	p.f.wakeCluster(BrokerQueue, cl)
}

// nextSum compares the reported digest with the expected one.
func (p *agentResponder) nextSum(cl *cluster) *todo {
	r, s := &cl.agent, &cl.agent.digests
	if s.reported == nil || r.requesting {
		return nil
	}
	if t := p.f.nextTag(cl, &r.untagged); t != nil {
		return t
	}
	held := *s.reported
	s.reported = nil
	mine, sent := p.sumOf(cl)
	switch {
	case !sent: // unpublished works cause a mismatch
	case held == mine:
		s.mismatch = digestMismatch{}
		for _, w := range cl.works {
			if w.comparable() != nil {
				w.spec.redelivery.listed(w.hub.fingerprint(), true)
			}
		}
		p.rejudge(cl)
	case s.mismatch.digest != held:
		s.mismatch = digestMismatch{digest: held, times: 1}
	default:
		if s.mismatch.times++; s.mismatch.times&(s.mismatch.times-1) == 0 { // at each power of two
			return p.requestAgentList(cl)
		}
	}
	return nil
}

// sumOf returns the digest that the agent of a cluster should report; sent: all its works were published.
func (p *agentResponder) sumOf(cl *cluster) (d codec.Digest, sent bool) {
	sent = true
	for _, w := range cl.works {
		if w.comparable() == nil {
			continue
		}
		sent = sent && w.hub.isTagged() && w.broker.on(p.f.sub) == recordMatches && w.broker.fingerprint.equal(w.hub.fingerprint())
		d.Add(codec.RecordHash(string(w.uid), w.hub.tag))
	}
	return d, sent
}

// requestAgentList makes an agent list its works. The request names no session of the agent, and an agent
// answers such a request with its list.
func (p *agentResponder) requestAgentList(cl *cluster) *todo {
	stamp := p.f.stamp(cl)
	stamp.PeerSession = codec.Session{}
	return p.begin(cl, RequestStatuses{Cluster: cl.name, Statuses: emptyStatusRequest, Stamp: stamp, Limit: p.f.limit}, func(Result) {})
}
