package kubeclient

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// window is the number of requests with one question that may be in flight at a time. It follows the answers of
// the server like the congestion window of TCP follows its acknowledgements (RFC 5681): slow start, additive
// increase, multiplicative decrease. A 429 of API Priority and Fairness has the role of a lost segment. A window
// is a value: its methods return the next one.
type window struct {
	// limit is the size; its fraction is progress towards one more request. From threshold on it grows by one
	// request per limit answers, below by one request per answer. most is the largest limit.
	limit, threshold, most float64
	inFlight               int
	// sent is the number of the last request, reduced that of the last one before the last reduction.
	sent, reduced uint64
}

const (
	// firstWindow is the initial window, as that of TCP (RFC 3390).
	firstWindow = 4
	// reduction is the factor of a reduction, as for TCP (RFC 5681, section 3.1).
	reduction = 0.5
)

// outcome is what an answer shows about the load of the server.
type outcome int

const (
	// answered: the server keeps up, whether it accepts the request or refuses it.
	answered outcome = iota
	// congested: the server rejected the request for its load, or did not answer in time.
	congested
	// unproven: the request ended for a reason that is independent of the load.
	unproven
)

func newWindow(most int) window {
	return window{limit: min(firstWindow, float64(most)), threshold: float64(most), most: float64(most)}
}

// isOpen reports whether one more request may be sent.
func (w window) isOpen() bool { return w.inFlight < int(w.limit) }

// send counts a request. The next window has its number in sent.
func (w window) send() window {
	w.inFlight++
	w.sent++
	return w
}

// end counts the end of the request with that number. Requests that were sent before a reduction cause no
// further one: together they are one sign of congestion (RFC 6582). A window that was not full does not grow: the
// server did not prove that it keeps up with more requests (RFC 7661).
func (w window) end(number uint64, o outcome) window {
	full := !w.isOpen()
	w.inFlight--
	switch {
	case o == congested && number > w.reduced:
		w.limit = max(1, w.limit*reduction)
		w.threshold, w.reduced = w.limit, w.sent
	case o == answered && full && w.limit < w.threshold:
		w.limit = min(w.limit+1, w.threshold)
	case o == answered && full:
		w.limit = min(w.limit+1/w.limit, w.most)
	}
	return w
}

// outcomeOf returns what the end of a request shows. An internal error that took long is usually the timeout of
// a webhook.
func outcomeOf(res *http.Response, err error, took time.Duration) outcome {
	var timeout net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return unproven
	case err != nil:
		if errors.As(err, &timeout) && timeout.Timeout() || took >= longRequest {
			return congested
		}
		return unproven
	case res.StatusCode == http.StatusTooManyRequests, res.StatusCode == http.StatusGatewayTimeout,
		res.StatusCode >= http.StatusInternalServerError && (took >= longRequest || res.Header.Get("Retry-After") != ""):
		return congested
	case res.StatusCode >= http.StatusInternalServerError:
		return unproven
	}
	return answered
}
