package registration

import (
	"context"
	"strings"
	"time"
)

// bookmarkPrefix begins the names of the bookmarks of clusters that the hub has accepted.
const bookmarkPrefix = "accepted/"

// saved returns the clusters that bookmarks say are accepted.
func saved(bookmarks map[string][]byte) (clusters []string) {
	for name := range bookmarks {
		clusters = append(clusters, strings.TrimPrefix(name, bookmarkPrefix))
	}
	return clusters
}

const (
	// savedAtOnce is how many changes of acceptance are saved at once.
	savedAtOnce = 1000
	// saveAgain is the pause after the store did not take them.
	saveAgain = time.Second
)

// save saves which clusters are accepted when that has changed, at the end once more.
func (r *Service) save(ctx context.Context) error {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-r.unsaved:
		case <-again.C:
		case <-ctx.Done():
			last, stop := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.DrainTimeout)
			defer stop()
			if err := r.saveChanges(last); err != nil {
				r.cfg.Log.Warn("which clusters are accepted was not saved; the source says it again", "error", err)
			}
			return nil
		}
		if err := r.saveChanges(ctx); err != nil && ctx.Err() == nil {
			r.cfg.Log.Warn("which clusters are accepted was not saved; trying again", "error", err)
			again.Reset(saveAgain)
		}
	}
}

// saveSoon says that there is something to save.
func (r *Service) saveSoon() { r.unsaved.Ring() }

// saveChanges saves what has changed.
func (r *Service) saveChanges(ctx context.Context) error {
	for {
		taken := r.cache.takeUnsaved(savedAtOnce)
		if len(taken) == 0 {
			return nil
		}
		set := make(map[string][]byte, len(taken))
		for cluster, is := range taken {
			set[bookmarkPrefix+cluster] = nil
			if is {
				set[bookmarkPrefix+cluster] = []byte("1")
			}
		}
		if err := r.cfg.Store.SetBookmarks(ctx, set); err != nil {
			r.cache.putBack(taken)
			return err
		}
	}
}
