package penstock.bench;

import com.alibaba.fastjson.JSONObject;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** The store that is measured, and the messages it is given: the same as bench/supply.py makes. */
class Target {
    static final String TOPIC = "TopicBench";
    static final String TAG = "tag-1";
    static final int QUEUES = 4;
    static final int POOL = 1000;
    private static final InetSocketAddress BORN = new InetSocketAddress("127.0.0.1", 50000);
    private static final InetSocketAddress STORED = new InetSocketAddress("127.0.0.1", 10911);

    DefaultMessageStore store;
    long number; // of the next message
    private byte[] blob;
    private final Map<Integer, byte[][]> pools = new ConcurrentHashMap<>();

    void open(JSONObject command, JSONObject done) throws Exception {
        blob = Files.readAllBytes(Paths.get(command.getString("bodies")));
        number = command.getLongValue("number");
        MessageStoreConfig config = new MessageStoreConfig();
        String root = command.getString("root");
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        try (ServerSocket probe = new ServerSocket(0)) {
            config.setHaListenPort(probe.getLocalPort());
        }
        for (Map.Entry<String, Object> setting : command.getJSONObject("settings").entrySet()) {
            set(config, setting.getKey(), setting.getValue().toString());
        }
        store = new DefaultMessageStore(config, new BrokerStatsManager("bench", false),
            (topic, queue, offset, tags, time, filter, properties) -> { }, new BrokerConfig(),
            new ConcurrentHashMap<>());
        long began = System.nanoTime();
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        done.put("ns", System.nanoTime() - began);
        if (!command.getBooleanValue("load_only")) {
            store.start();
            done.put("started_ns", System.nanoTime() - began);
        }
        done.put("ha_port", config.getHaListenPort());
        done.put("count", 1);
    }

    void close(JSONObject done) {
        long began = System.nanoTime();
        store.shutdown();
        done.put("ns", System.nanoTime() - began);
        done.put("count", 1);
        store = null;
    }

    void total(JSONObject done) throws Exception {
        settle();
        long count = 0;
        for (int queue = 0; queue < QUEUES; queue++) {
            count += store.getMaxOffsetInQueue(TOPIC, queue);
        }
        done.put("count", count);
    }

    void memory(JSONObject done) throws Exception {
        for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
            if (line.startsWith("RssAnon:") || line.startsWith("RssFile:")) {
                done.put(line.startsWith("RssAnon:") ? "own_kib" : "mapped_kib",
                    Long.parseLong(line.replaceAll("[^0-9]", "")));
            }
        }
    }

    private static void set(Object config, String name, String value) throws Exception {
        String wanted = "set" + name.substring(0, 1).toUpperCase() + name.substring(1);
        for (Method method : config.getClass().getMethods()) {
            if (method.getName().equals(wanted) && method.getParameterCount() == 1) {
                Class<?> kind = method.getParameterTypes()[0];
                if (kind == int.class) { method.invoke(config, Integer.parseInt(value)); return; }
                if (kind == long.class) { method.invoke(config, Long.parseLong(value)); return; }
                if (kind == boolean.class) { method.invoke(config, Boolean.parseBoolean(value)); return; }
                if (kind == String.class) { method.invoke(config, value); return; }
            }
        }
        throw new IllegalArgumentException("no setting " + name);
    }

    /** Waits until queues (and index, where there is one) have everything that was put. */
    void settle() {
        while (store.dispatchBehindBytes() > 0) {
            Thread.onSpinWait();
        }
    }

    byte[] body(long number, int size) {
        byte[][] pool = pools.computeIfAbsent(size, wanted -> {
            byte[][] made = new byte[POOL][];
            for (int i = 0; i < POOL; i++) {
                made[i] = java.util.Arrays.copyOfRange(blob, i * wanted, (i + 1) * wanted);
            }
            return made;
        });
        return pool[(int) (number % POOL)];
    }

    /** The digits of the key are written by hand: String.format would take longer than the rest of the message. */
    static String key(long number) {
        char[] text = "key-000000000000".toCharArray();
        for (int at = text.length - 1; number > 0; at--, number /= 10) {
            text[at] = (char) ('0' + number % 10);
        }
        return new String(text);
    }

    /** A message as the caller has it in hand: its properties are not encoded yet. */
    MessageExtBrokerInner single(int queue, int size) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setBody(body(number, size));
        message.setTopic(TOPIC);
        message.setKeys(key(number++));
        message.setTags(TAG);
        place(message, queue);
        return message;
    }

    static void place(MessageExt message, int queue) {
        message.setQueueId(queue);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(BORN);
        message.setStoreHost(STORED);
    }

    /** One message of a client's batch. */
    Message part(int size) {
        Message message = new Message(TOPIC, body(number, size));
        message.setKeys(key(number++));
        message.setTags(TAG);
        MessageAccessor.clearProperty(message, "WAIT"); // the constructor's own; ours has none
        return message;
    }
}
