package penstock;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Drives a real DefaultMessageStore: one JSON command a line in, one JSON answer a line out. */
public class Driver {
    private static final int BLANK_MAGIC = -875286124;
    private static final int SETTLE_MS = 30_000;
    private static DefaultMessageStore store;

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // the store's own prints must not mix with answers
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject answer;
            try {
                answer = answer(JSONObject.parseObject(line));
            } catch (Throwable error) {
                error.printStackTrace();
                answer = new JSONObject();
                answer.put("error", error.toString());
            }
            out.write((answer.toJSONString() + "\n").getBytes(StandardCharsets.UTF_8));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static JSONObject answer(JSONObject command) throws Exception {
        JSONObject done = new JSONObject();
        switch (command.getString("do")) {
            case "open": open(command, done); break;
            case "put": done.put("results", puts(command.getJSONArray("messages"))); break;
            case "batch": done.put("result", batch(command)); break;
            case "dump": done.put("queues", dump()); break;
            case "records": done.put("records", records()); break;
            case "read": read(command, done); break;
            case "filter": done.put("messages", filtered(command)); break;
            case "units": units(command, done); break;
            case "query": done.put("messages", query(command)); break;
            case "time": time(command, done); break;
            case "state": state(done); break;
            case "ha_port": // 4.9 does not tell which one the system has chosen
                ServerSocketChannel listening = (ServerSocketChannel) part(part(store.getHaService(), "acceptSocketService"), "serverSocketChannel");
                done.put("port", listening.socket().getLocalPort());
                break;
            case "follow": // as a broker does when its name server has told where the master is; the client waits for 5 s before it looks
                store.updateHaMasterAddress(command.getString("master"));
                ((ServiceThread) part(store.getHaService(), "haClient")).wakeup();
                break;
            case "close": close(); break;
            default: throw new IllegalArgumentException(command.toJSONString());
        }
        return done;
    }

    private static void open(JSONObject command, JSONObject done) throws Exception {
        if (store != null) {
            throw new IllegalStateException("this JVM has a store open already");
        }
        MessageStoreConfig config = new MessageStoreConfig();
        String root = command.getString("root");
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        for (Map.Entry<String, Object> setting : command.getJSONObject("config").entrySet()) {
            set(config, setting.getKey(), setting.getValue().toString());
        }
        Constructor<?> made = DefaultMessageStore.class.getConstructors()[0];
        Object[] parts = new Object[made.getParameterCount()];
        parts[0] = config;
        parts[1] = new BrokerStatsManager("interop", false);
        parts[2] = java.lang.reflect.Proxy.newProxyInstance(Driver.class.getClassLoader(),
            new Class<?>[] {MessageArrivingListener.class}, (proxy, method, values) -> null);
        parts[3] = new BrokerConfig();
        if (parts.length > 4) {
            parts[4] = new ConcurrentHashMap<String, Object>();
        }
        DefaultMessageStore fresh = (DefaultMessageStore) made.newInstance(parts);
        boolean good = fresh.load();
        done.put("loaded", good);
        if (good) {
            fresh.start();
            store = fresh;
            settle();
        }
    }

    /** Closes the store. It sleeps for 1 s (4.9) or 3 s for readers that do not exist here, and is woken. */
    private static void close() throws Exception {
        Thread closing = Thread.currentThread();
        Thread waking = new Thread(() -> {
            try {
                while (true) {
                    StackTraceElement[] at = closing.getStackTrace();
                    for (int i = 0; i + 1 < at.length; i++) {
                        if (at[i].getMethodName().equals("sleep") && at[i + 1].getClassName().endsWith(".DefaultMessageStore")) {
                            closing.interrupt();
                        }
                    }
                    Thread.sleep(5);
                }
            } catch (InterruptedException done) {
                return;
            }
        });
        waking.start();
        store.shutdown();
        store = null;
        waking.interrupt();
        waking.join();
        Thread.interrupted();
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

    private static void settle() throws Exception {
        long end = System.nanoTime() + SETTLE_MS * 1_000_000L;
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("dispatch is still " + store.dispatchBehindBytes() + " bytes behind");
            }
            Thread.sleep(1);
        }
    }

    private static InetSocketAddress host(String text, String fallback) throws Exception {
        String given = text == null ? fallback : text;
        int colon = given.lastIndexOf(':');
        String address = given.substring(0, colon).replace("[", "").replace("]", "");
        return new InetSocketAddress(InetAddress.getByName(address), Integer.parseInt(given.substring(colon + 1)));
    }

    private static void fill(MessageExt message, JSONObject given) throws Exception {
        MessageAccessor.setProperties(message, new HashMap<>());
        message.setTopic(given.getString("topic"));
        message.setQueueId(given.getIntValue("queue"));
        message.setFlag(given.getIntValue("flag"));
        message.setSysFlag(given.getIntValue("sys_flag"));
        message.setBornTimestamp(given.getLongValue("born_time_ms"));
        message.setBornHost(host(given.getString("born_host"), "127.0.0.1:50000"));
        message.setStoreHost(host(given.getString("store_host"), "127.0.0.1:10911"));
        if (((InetSocketAddress) message.getBornHost()).getAddress().getAddress().length == 16) {
            message.setBornHostV6Flag();
        }
        if (((InetSocketAddress) message.getStoreHost()).getAddress().getAddress().length == 16) {
            message.setStoreHostAddressV6Flag();
        }
        message.setReconsumeTimes(given.getIntValue("reconsume_times"));
        message.setPreparedTransactionOffset(given.getLongValue("prepared_offset"));
    }

    private static void properties(Message message, JSONObject given) {
        JSONObject properties = given.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                MessageAccessor.putProperty(message, name, properties.getString(name));
            }
        }
        if (given.getString("tag") != null && !given.getString("tag").isEmpty()) {
            message.setTags(given.getString("tag"));
        }
        if (given.getString("keys") != null && !given.getString("keys").isEmpty()) {
            message.setKeys(given.getString("keys"));
        }
    }

    private static JSONArray puts(JSONArray messages) throws Exception {
        JSONArray results = new JSONArray();
        for (int i = 0; i < messages.size(); i++) {
            JSONObject given = messages.getJSONObject(i);
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            fill(message, given);
            properties(message, given);
            message.setBody(Base64.getDecoder().decode(given.getString("body")));
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            results.add(result(store.putMessage(message)));
        }
        settle();
        return results;
    }

    private static List<Message> several(JSONArray messages) {
        List<Message> several = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            JSONObject given = messages.getJSONObject(i);
            Message message = new Message(given.getString("topic"), Base64.getDecoder().decode(given.getString("body")));
            message.setFlag(given.getIntValue("flag"));
            properties(message, given);
            several.add(message);
        }
        return several;
    }

    private static JSONObject batch(JSONObject command) throws Exception {
        JSONArray messages = command.getJSONArray("messages");
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, messages.getJSONObject(0));
        batch.setBody(MessageDecoder.encodeMessages(several(messages)));
        JSONObject result = result(store.putMessages(batch));
        settle();
        return result;
    }

    private static JSONObject result(PutMessageResult put) {
        JSONObject result = new JSONObject();
        result.put("status", String.valueOf(put.getPutMessageStatus()));
        AppendMessageResult append = put.getAppendMessageResult();
        if (append != null) {
            result.put("append", String.valueOf(append.getStatus()));
            result.put("log_offset", append.getWroteOffset());
            result.put("size", append.getWroteBytes());
            result.put("queue_offset", append.getLogicsOffset());
            result.put("store_time_ms", append.getStoreTimestamp());
            result.put("message_id", append.getMsgId());
        }
        return result;
    }

    private static JSONObject shown(MessageExt message) {
        JSONObject shown = new JSONObject();
        shown.put("topic", message.getTopic());
        shown.put("queue", message.getQueueId());
        shown.put("queue_offset", message.getQueueOffset());
        shown.put("log_offset", message.getCommitLogOffset());
        shown.put("body", message.getBody() == null ? "" : Base64.getEncoder().encodeToString(message.getBody()));
        shown.put("crc", message.getBodyCRC());
        shown.put("flag", message.getFlag());
        shown.put("sys_flag", message.getSysFlag());
        shown.put("born_time_ms", message.getBornTimestamp());
        shown.put("born_host", text((InetSocketAddress) message.getBornHost()));
        shown.put("store_time_ms", message.getStoreTimestamp());
        shown.put("store_host", text((InetSocketAddress) message.getStoreHost()));
        shown.put("reconsume_times", message.getReconsumeTimes());
        shown.put("prepared_offset", message.getPreparedTransactionOffset());
        shown.put("size", message.getStoreSize());
        shown.put("message_id", ((MessageExt) message).getMsgId());
        Map<String, String> properties = message.getProperties();
        shown.put("properties", properties == null ? new TreeMap<>() : new TreeMap<>(properties));
        return shown;
    }

    private static String text(InetSocketAddress host) {
        byte[] raw = host.getAddress().getAddress();
        StringBuilder hex = new StringBuilder();
        for (byte each : raw) {
            hex.append(String.format("%02x", each));
        }
        return hex + ":" + host.getPort();
    }

    private static JSONArray shown(List<ByteBuffer> buffers) {
        JSONArray messages = new JSONArray();
        for (ByteBuffer buffer : buffers) {
            while (buffer.hasRemaining()) {
                MessageExt message = MessageDecoder.decode(buffer, true, false);
                if (message == null) {
                    messages.add(null);
                    break;
                }
                messages.add(shown(message));
            }
        }
        return messages;
    }

    /** Every record of the log in its order, with those that are in no queue; a blank one as its size. */
    private static JSONArray records() {
        JSONArray records = new JSONArray();
        long at = store.getMinPhyOffset();
        while (at < store.getMaxPhyOffset()) {
            SelectMappedBufferResult rest = store.getCommitLogData(at);
            ByteBuffer bytes = rest.getByteBuffer();
            int size = bytes.getInt(0);
            JSONObject one = new JSONObject();
            one.put("log_offset", at);
            one.put("size", size);
            one.put("magic", bytes.getInt(4));
            if (bytes.getInt(4) != BLANK_MAGIC) {
                one = shown(MessageDecoder.decode(((ByteBuffer) bytes.slice().limit(size)).slice(), true, false));
                one.put("magic", bytes.getInt(4));
            }
            records.add(one);
            rest.release();
            at += size;
        }
        return records;
    }

    private static JSONArray dump() throws Exception {
        JSONArray queues = new JSONArray();
        for (Object topicName : new TreeSet<Object>(store.getConsumeQueueTable().keySet())) {
            String topic = (String) topicName;
            for (Object number : new TreeSet<Object>(store.getConsumeQueueTable().get(topic).keySet())) {
                int queue = (Integer) number;
                JSONObject one = new JSONObject();
                one.put("topic", topic);
                one.put("queue", queue);
                long min = store.getMinOffsetInQueue(topic, queue);
                long max = store.getMaxOffsetInQueue(topic, queue);
                one.put("min", min);
                one.put("max", max);
                JSONArray messages = new JSONArray();
                for (long at = min; at < max; ) {
                    GetMessageResult got = store.getMessage("interop", topic, queue, at, 32, null);
                    messages.addAll(shown(got.getMessageBufferList()));
                    long next = got.getNextBeginOffset();
                    got.release();
                    if (next <= at) {
                        break;
                    }
                    at = next;
                }
                one.put("messages", messages);
                queues.add(one);
            }
        }
        return queues;
    }

    private static void read(JSONObject command, JSONObject done) throws Exception {
        GetMessageResult got = store.getMessage("interop", command.getString("topic"), command.getIntValue("queue"),
            command.getLongValue("offset"), command.getIntValue("limit"), null);
        done.put("status", String.valueOf(got.getStatus()));
        done.put("next_offset", got.getNextBeginOffset());
        done.put("min", got.getMinOffset());
        done.put("max", got.getMaxOffset());
        done.put("messages", shown(got.getMessageBufferList()));
        got.release();
    }

    /** What a consumer of one tag is given: the entry's tag code decides, as in DefaultMessageFilter. */
    private static JSONArray filtered(JSONObject command) throws Exception {
        int hash = command.getString("tag").hashCode();
        MessageFilter filter = new MessageFilter() {
            public boolean isMatchedByConsumeQueue(Long code, ConsumeQueueExt.CqExtUnit unit) {
                return code == null || code.intValue() == hash;
            }

            public boolean isMatchedByCommitLog(ByteBuffer record, Map<String, String> properties) {
                return true;
            }
        };
        String topic = command.getString("topic");
        int queue = command.getIntValue("queue");
        JSONArray messages = new JSONArray();
        for (long at = store.getMinOffsetInQueue(topic, queue); at < store.getMaxOffsetInQueue(topic, queue); ) {
            GetMessageResult got = store.getMessage("interop", topic, queue, at, 32, filter);
            messages.addAll(shown(got.getMessageBufferList()));
            long next = got.getNextBeginOffset();
            got.release();
            if (next <= at) {
                break;
            }
            at = next;
        }
        return messages;
    }

    /** The unit in the extension of each entry of a queue, as the store shows it to a filter; null for none. */
    private static void units(JSONObject command, JSONObject done) throws Exception {
        JSONArray codes = new JSONArray();
        JSONArray times = new JSONArray();
        MessageFilter looking = new MessageFilter() {
            public boolean isMatchedByConsumeQueue(Long code, ConsumeQueueExt.CqExtUnit unit) {
                codes.add(unit == null ? null : unit.getTagsCode());
                times.add(unit == null ? null : unit.getMsgStoreTime());
                return true;
            }

            public boolean isMatchedByCommitLog(ByteBuffer record, Map<String, String> properties) {
                return true;
            }
        };
        String topic = command.getString("topic");
        int queue = command.getIntValue("queue");
        long max = store.getMaxOffsetInQueue(topic, queue);
        for (long at = store.getMinOffsetInQueue(topic, queue); at < max; at++) {
            store.getMessage("interop", topic, queue, at, 1, looking).release();
        }
        done.put("codes", codes);
        done.put("times", times);
    }

    private static JSONArray query(JSONObject command) throws Exception {
        QueryMessageResult found = store.queryMessage(command.getString("topic"), command.getString("key"),
            command.getIntValue("limit"), command.getLongValue("begin_ms"), command.getLongValue("end_ms"));
        JSONArray messages = shown(found.getMessageBufferList());
        found.release();
        return messages;
    }

    private static void time(JSONObject command, JSONObject done) throws Exception {
        String topic = command.getString("topic");
        int queue = command.getIntValue("queue");
        long at = command.getLongValue("time_ms");
        String boundary = command.getString("boundary");
        if (boundary == null) {
            done.put("offset", store.getOffsetInQueueByTime(topic, queue, at));
            return;
        }
        Class<?> kind = Class.forName("org.apache.rocketmq.common.BoundaryType");
        Object value = kind.getMethod("valueOf", String.class).invoke(null, boundary.toUpperCase());
        Method method = DefaultMessageStore.class.getMethod("getOffsetInQueueByTime", String.class, int.class, long.class, kind);
        done.put("offset", method.invoke(store, topic, queue, at, value));
    }

    private static void state(JSONObject done) throws Exception {
        done.put("min_offset", store.getMinPhyOffset());
        done.put("max_offset", store.getMaxPhyOffset());
        done.put("behind", store.dispatchBehindBytes());
        done.put("log_ms", store.getStoreCheckpoint().getPhysicMsgTimestamp());
        done.put("queues_ms", store.getStoreCheckpoint().getLogicsMsgTimestamp());
        done.put("index_ms", store.getStoreCheckpoint().getIndexMsgTimestamp());
        done.put("flushed_where", flushedWhere());
    }

    private static Object part(Object whole, String name) throws Exception {
        Class<?> kind = whole.getClass();
        while (Arrays.stream(kind.getDeclaredFields()).noneMatch(field -> field.getName().equals(name))) {
            kind = kind.getSuperclass();
        }
        java.lang.reflect.Field field = kind.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(whole);
    }

    private static long flushedWhere() throws Exception {
        Object queue = part(store.getCommitLog(), "mappedFileQueue");
        return (Long) queue.getClass().getMethod("getFlushedWhere").invoke(queue);
    }
}
