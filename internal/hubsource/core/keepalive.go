package core

import (
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/pkg/codec"
)

// Keepalive is an agent's word that it is there, and what it holds of this source in sum, or its
// farewell, by which a broker says that it is gone.
type Keepalive struct {
	Cluster string
	Digest  codec.Digest
	Goodbye bool
	Stamp   sessionfence.Stamp
}

// KeepaliveOf reads it. The error is a *codec.AttributeError.
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

// digestReport are what an agent says of its works.
type digestReport struct {
	// reported is what it holds in sum, until that was compared; gap is another sum than it should
	// have.
	reported *codec.Digest
	mismatch digestMismatch
}

// digestMismatch is a sum that an agent holds and should not, and how often it has said so in a row.
type digestMismatch struct {
	digest codec.Digest
	times  int
}

// keepalive takes it. What is under way to the agent makes a difference, so one counts that is there
// twice in a row.
func (p *agentResponder) keepalive(a *Keepalive) {
	cl := p.f.clusters[a.Cluster]
	if cl == nil || !p.f.stateless || !p.f.mayReport(cl) || cl.agent.list != nil {
		return
	}
	cl.agent.digests.reported = &a.Digest
	cl.agent.tagAll(cl)
	p.f.wakeCluster(BrokerQueue, cl)
}

// nextSum compares what an agent holds in sum with what it should hold.
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
	case !sent: // what is not published yet makes a difference
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
		if s.mismatch.times++; s.mismatch.times&(s.mismatch.times-1) == 0 { // ever less often
			return p.requestAgentList(cl)
		}
	}
	return nil
}

// sumOf is what the agent of a cluster should hold in sum; sent: all of that was published.
func (p *agentResponder) sumOf(cl *cluster) (d codec.Digest, sent bool) {
	sent = true
	for _, w := range cl.works {
		if w.comparable() == nil {
			continue
		}
		sent = sent && w.hub.isTagged() && w.broker.on(p.f.sub) == holds && w.broker.fingerprint.equal(w.hub.fingerprint())
		d.Add(codec.RecordHash(string(w.uid), w.hub.tag))
	}
	return d, sent
}

// requestAgentList has an agent list what it holds, as it does when it is not known to who speaks.
func (p *agentResponder) requestAgentList(cl *cluster) *todo {
	stamp := p.f.stamp(cl)
	stamp.PeerSession = codec.Session{}
	return p.begin(cl, RequestStatuses{Cluster: cl.name, Held: emptyStatusRequest, Stamp: stamp, Limit: p.f.limit}, func(Result) {})
}
