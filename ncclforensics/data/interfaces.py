"""Objects of IF-MIB (RFC 2863) that count what interfaces of switches carried, lost and discarded."""

from __future__ import annotations

SPEED = "ifHighSpeed"  # in units of 1,000,000 bits a second
RECEIVED, SENT = "ifHCInOctets", "ifHCOutOctets"
# Their numbers below 1.3.6.1.2.1, which tools print that have no MIBs.
OBJECTS = {
    "31.1.1.1.6": RECEIVED,
    "31.1.1.1.10": SENT,
    "31.1.1.1.7": "ifHCInUcastPkts",
    "31.1.1.1.11": "ifHCOutUcastPkts",
    "31.1.1.1.15": SPEED,
    "2.2.1.13": "ifInDiscards",
    "2.2.1.14": "ifInErrors",
    "2.2.1.19": "ifOutDiscards",
    "2.2.1.20": "ifOutErrors",
}
UNITS = {RECEIVED: "bytes", SENT: "bytes", "ifInErrors": "errors", "ifOutErrors": "errors"}  # others: packets
NAMES = {"ifName": 0, "31.1.1.1.1": 0, "ifDescr": 1, "2.2.1.2": 1}  # the better one first
# Columns of SONiC's `show interfaces counters`.
OF_SONIC = {
    "rx_err": "ifInErrors",
    "tx_err": "ifOutErrors",
    "rx_drp": "ifInDiscards",
    "tx_drp": "ifOutDiscards",
    "rx_ovr": "rx_ovr",
    "tx_ovr": "tx_ovr",
}
# Columns of tables of Cisco's and Arista's switches; damaged frames (FCS) are counted among the receive errors, too.
OF_TABLES = {
    "Rcv-Err": "ifInErrors",
    "Rx": "ifInErrors",
    "Xmit-Err": "ifOutErrors",
    "Tx": "ifOutErrors",
    "OutDiscards": "ifOutDiscards",
    "InDiscards": "ifInDiscards",
}
LOSSES = {
    "ifOutDiscards": "packets to send discarded",
    "ifInDiscards": "received packets discarded",
    "ifInErrors": "receive errors",
    "ifOutErrors": "send errors",
    "rx_ovr": "received packets without a buffer",
    "tx_ovr": "packets to send without a buffer",
}
ERRORS_LEAST = 10  # receive errors between two dumps, from which on a link is at fault: as of InfiniBand
