package node

import (
	"context"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// works reads what pods do on the host. It is used by one goroutine.
type works struct {
	pods   *podresources.PodWorks
	reader *driver.Worker[map[string]podresources.PodWork]
}

// Works starts to read what the pods with these UIDs have done on the host, unless there are none
// or the last read has not ended. It returns what the last read found, once, nil if there is
// nothing new. It waits for nothing, and must be called by one goroutine.
func (n *Node) Works(uids []string) map[string]podresources.PodWork {
	last, _ := n.works.reader.Take()
	if len(uids) > 0 {
		n.works.reader.Start(context.Background(), func(context.Context) (map[string]podresources.PodWork, error) {
			return n.works.pods.Of(uids)
		})
	}
	return last.Value
}

// CheckWorks reads what the pods with these UIDs have done on the host.
func (n *Node) CheckWorks(uids []string) (map[string]podresources.PodWork, error) {
	return n.works.pods.Of(uids)
}
